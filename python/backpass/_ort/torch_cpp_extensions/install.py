"""``python -m torch_ort.configure``: nothing to build."""


def main() -> None:
    print("Backpass needs no extensions of torch: nothing to build")


if __name__ == "__main__":
    main()
