"""require: an assertion that `python -O` keeps. Scripts catch AssertionError for wrong arguments, as the original's."""


def require(holds: bool, text: str) -> None:
    if not holds:
        raise AssertionError(text)
