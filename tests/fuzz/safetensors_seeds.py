"""Write the seed corpus of safetensors_fuzz: one small file of every kind.

Usage: python tests/fuzz/safetensors_seeds.py FOLDER
"""

import argparse
import json
import struct
from pathlib import Path
from typing import Any

SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2}
SIZES |= {"I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8}


def file_bytes(header: dict[str, Any], size: int, padding: int = 0) -> bytes:
    text = json.dumps(header, ensure_ascii=padding == 0).encode() + b" " * padding
    return struct.pack("<Q", len(text)) + text + bytes(size)


def every_type() -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt", "note": "ü\n\u0001\U0001f600"}}
    end = 0
    for name, size in SIZES.items():
        header[f"w.{name}"] = {"dtype": name, "shape": [2, 1], "data_offsets": [end, end + 2 * size]}
        end += 2 * size
    return file_bytes(header, end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    scalar = {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}
    empty = {"dtype": "F32", "shape": [3, 0], "data_offsets": [4, 4]}
    (folder / "every_type").write_bytes(every_type())
    (folder / "nothing").write_bytes(file_bytes({}, 0))
    (folder / "scalar_and_empty").write_bytes(file_bytes({"größe": scalar, "e": empty}, 4, padding=5))
    (folder / "gap").write_bytes(file_bytes({"a": scalar}, 8))
    (folder / "overlap").write_bytes(file_bytes({"a": scalar, "b": scalar}, 4))


if __name__ == "__main__":
    main()
