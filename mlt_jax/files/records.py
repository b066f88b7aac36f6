"""Tables of typed cells: parquet, folders of parquet as Hugging Face keeps data sets, JSON and JSON lines."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlt_jax.files.annotations import annotated
from mlt_jax.files.columns import LIST_COLUMNS, Reading, Source, Table, as_table


def read_parquet(paths: list[Path], reading: Reading, path: Path) -> Table:
    """The table in parquet files with the same columns, one below the other; messages call them `path`.

    Ids may stand in the index. Whole numbers are names where the file's Hugging Face features name them. Of columns
    with pictures only the path is read, and is the id where there is no other.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ValueError(f"{path}: parquet needs pandas and pyarrow; pip install pandas pyarrow") from None
    try:
        schema = pq.read_schema(paths[0])
        pictures = {field.name for field in schema if pa.types.is_struct(field.type)}
        binary = {field.name for field in schema if pa.types.is_binary(field.type)}
        plain = [name for name in schema.names if name not in pictures | binary]
        wanted = [
            *plain,
            *(f"{name}.path" for name in pictures if schema.field(name).type.get_field_index("path") >= 0),
        ]
        frame = pa.concat_tables([pq.read_table(part, columns=wanted) for part in paths]).to_pandas()
    except Exception as error:  # pyarrow has its own
        raise ValueError(f"{path}: is no parquet file ({error})") from None
    for name in pictures & set(frame.columns):
        frame[name] = [cell and cell.get("path") for cell in frame[name]]
        if frame[name].isna().any() or frame[name].duplicated().any():
            frame = frame.drop(columns=name)
    levels = len(frame.index.names)
    index = levels > 1 or frame.index.tolist() != list(range(len(frame)))
    key = str(frame.index.name or "index") if index and levels == 1 and len(paths) == 1 else None
    called = [key] if key else [str(name or k) for k, name in enumerate(frame.index.names)]
    for twice in set(called) & set(map(str, frame.columns)) if index and len(paths) == 1 else ():
        raise ValueError(f'{path}: "{twice}" is an index and a column; rename one')
    # Levels of an index become columns like others.
    whole = frame.reset_index(names=called) if index and len(paths) == 1 else frame.reset_index(drop=True)
    names = tuple(map(str, whole.columns))
    cells = [_cells(whole.iloc[:, k]) for k in range(len(names))]
    for name, words in _class_names(schema).items():
        if name in names:
            k = names.index(name)
            cells[k] = [_named(path, row, cell, words) for row, cell in enumerate(cells[k])]
            whole[whole.columns[k]] = type(whole.iloc[:, k])(cells[k], index=whole.index, dtype=object)
    return as_table(path, Source(names, cells, frame=whole), reading, key=key, at="row", first=0)


def parquet_parts(folder: Path) -> list[Path]:
    """The parquet files of one split of a Hugging Face data set in a folder.

    Raises:
      ValueError: none, or those of several splits.
    """
    parts = sorted(folder.rglob("*.parquet"))
    if not parts:
        arrow = any(folder.rglob("*.arrow"))
        advice = "write it with Dataset.to_parquet" if arrow else "pass a file, or a folder of parquet files"
        raise ValueError(f"{folder}: is a folder{' of Arrow files' if arrow else ''}; {advice}")
    splits = {part.stem.split("-")[0] if "-of-" in part.stem else part.stem for part in parts}
    if len(splits) > 1:
        raise ValueError(f"{folder}: is a folder with {', '.join(sorted(splits))}; pass one of its files")
    return parts


def read_json(path: Path, reading: Reading) -> Table:
    """The table in a .json file (annotations of COCO, Label Studio or FiftyOne, or records), or in JSON lines.

    Records are objects of equal keys: {"id": "a", "labels": ["cat"]}, {"id": "a", "cat": 1, "dog": 0}, or an object of
    lists or of such objects by id.
    """
    if path.suffix.lower() == ".json":
        content = load_json(path)
        if table := annotated(path, content, reading):
            return table
        if isinstance(content, dict) and content and all(isinstance(x, list | dict) for x in content.values()):
            content = [{"id": k} | (x if isinstance(x, dict) else {"labels": x}) for k, x in content.items()]
        return _from_records(path, content, reading, at="record", first=0)
    records = []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: is no JSON in UTF-8 ({error}); save it as UTF-8") from None
    for number, line in enumerate(lines, 1):
        try:
            records += [json.loads(line)] if line.strip() else []
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}: line {number} is no JSON ({error}); write one object per line") from None
    return _from_records(path, records, reading, at="line", first=1)


def load_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: is no JSON in UTF-8 ({error}); pass what the tool exported") from None


def _from_records(path: Path, records: Any, reading: Reading, *, at: str, first: int) -> Table:
    if not isinstance(records, list) or not records:
        raise ValueError(
            f"{path}: holds {'nothing' if not records else type(records).__name__}; pass a list of objects"
        )
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            raise ValueError(
                f"{path}: {at} {row + first} is {str(record)[:40]!r}; write an object with an id and labels"
            )
    flat = [_flat(record) for record in records]
    names = tuple(dict.fromkeys(name for record in flat for name in record))
    cells: list[Any] = [[record.get(name) for record in flat] for name in names]
    return as_table(path, Source(names, cells), reading, at=at, first=first)


def _flat(record: dict[str, Any]) -> dict[str, Any]:
    """The record, with an object of numbers by class among its values laid open."""
    inner = [
        key for key, value in record.items() if isinstance(value, dict) and key.lower() in (*LIST_COLUMNS, "probs")
    ]
    return {k: v for k, v in record.items() if k not in inner} | {k: v for key in inner for k, v in record[key].items()}


def _cells(column: Any) -> Any:
    """A NumPy array of numbers, or a list of what is in the cells."""
    if column.dtype.kind in "biuf":
        return column.to_numpy("float32", na_value=float("nan")) if column.dtype.kind != "i" else column.to_numpy()
    return column.array if column.dtype.kind != "O" else column.tolist()


def _class_names(schema: Any) -> dict[str, list[str]]:
    """The class names of each column of class indices, as `datasets` writes them into the schema."""
    stored = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = stored.get("info", {}).get("features", {})
    inner = {k: v.get("feature", v) if isinstance(v, dict) else v for k, v in features.items()}
    inner = {k: v[0] if isinstance(v, list) and v else v for k, v in inner.items()}  # older files: [feature]
    return {k: v["names"] for k, v in inner.items() if isinstance(v, dict) and "names" in v}


def _named(path: Path, row: int, cell: Any, words: list[str]) -> Any:
    """Class names in place of the indices in a cell."""
    single = isinstance(cell, Iterable)
    indices = [int(k) for k in cell] if single else [] if cell is None or cell != cell else [int(cell)]
    for k in indices:
        if not -1 <= k < len(words):
            raise ValueError(f"{path}: row {row} has class index {k} of {len(words)}; correct it")
    return [words[k] for k in indices if k >= 0] if single or indices else None
