"""Operators on strings."""

from __future__ import annotations

import re

import numpy as np
from op_case import Row, case


def words(*items: str, shape: tuple[int, ...] = (-1,)) -> np.ndarray:
    return np.array(items, dtype=object).reshape(shape)


def full_match(x: np.ndarray, pattern: str) -> np.ndarray:
    return np.array([re.fullmatch(pattern, s, re.ASCII) is not None for s in x.flat]).reshape(x.shape)


TEXTS = words("", "a", "aab", "foo bar", "ab\ncd", "éü", "2024-05", "AbC", "a" * 40)
BIGRAMS = {
    "mode": "TF",
    "min_gram_length": 1,
    "max_gram_length": 2,
    "max_skip_count": 2,
    "ngram_counts": [0, 3],
    "ngram_indexes": [2, 0, 1, 4, 3],
}

ROWS = [
    Row(
        "StringConcat",
        [
            case(words("a", "b"), words("c", "d")),
            case(words("x", "y", "z", shape=(3, 1)), words("é", "")),
            case(words("a", shape=()), words("b", shape=())),
            case(words(shape=(0, 2)), words("q")),
        ],
    ),
    Row(
        "StringSplit",
        [
            case(words("a b  c ", "", "  x y")),
            case(words("a,b,,c", "x", shape=(2, 1)), delimiter=","),
            case(words("a b c d", " e f "), maxsplit=1),
            case(words("a--b--c"), delimiter="--", maxsplit=1),
        ],
        outputs=2,
        sized=False,
    ),
    Row(
        "RegexFullMatch",
        [
            case(TEXTS, pattern=p)
            for p in (
                r"a*b?",
                r"\w+ \w+",
                r"(?s).*cd",
                r"[a-zé]+ü|",
                r"\d{4}-\d{2}",
                r"(?i)abc",
                r"(a?){30}a{10}",
                r"\bfoo\b.*",
                r"[^\s]+",
            )
        ],
        oracle=full_match,
    ),
    # onnx.reference also strips accents and cuts words at spaces; the standard does neither.
    Row(
        "StringNormalizer",
        [
            case(words("Monday", "tuesday", "MONDAY"), stopwords=["monday"]),
            case(words("Monday", "Été", shape=(1, 2)), case_change_action="UPPER"),
            case(words("Monday", "monday"), case_change_action="LOWER", is_case_sensitive=1, stopwords=["Monday", "x"]),
            case(words("a"), stopwords=["A"]),
        ],
        oracle=lambda x, case_change_action="NONE", is_case_sensitive=0, stopwords=(): normalized(
            x, case_change_action, is_case_sensitive, stopwords
        ),
        sized=False,
    ),
    Row(
        "TfIdfVectorizer",
        [
            case(np.array([7, 8, 7, 9, 8, 7]), pool_int64s=[7, 8, 9, 7, 8, 9, 7], **BIGRAMS),
            case(np.array([[7, 8], [9, 7]], np.int32), pool_int64s=[7, 8, 9, 7, 8, 9, 7], **BIGRAMS),
            case(
                words("b", "a", "b"),
                pool_strings=["a", "b", "c", "a", "b", "b", "a"],
                **{**BIGRAMS, "mode": "TFIDF", "weights": [0.5, 1.0, 2.0, 3.0, 4.0]},
            ),
        ],
    ),
]


def normalized(x: np.ndarray, action: str, sensitive: int, stopwords: tuple[str, ...]) -> np.ndarray:
    change = {"UPPER": str.upper, "LOWER": str.lower, "NONE": str}[action]
    compare = str if sensitive else str.lower
    stop = {compare(w) for w in stopwords}
    kept = [change(w) for w in x.flat if compare(w) not in stop] or [""]
    return np.array(kept, dtype=object).reshape((1, -1) if x.ndim == 2 else (-1,))
