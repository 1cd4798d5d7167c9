"""``python -m torch_ort.configure``: nothing to build."""


def build_torch_cpp_extensions() -> None:
    print("Backpass needs no extensions of torch: nothing to build")


main = build_torch_cpp_extensions

if __name__ == "__main__":
    main()
