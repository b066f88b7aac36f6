"""A small folder laid out like COCO's."""

import json

import numpy as np
from PIL import Image


def write_coco(root, part, images, *, num_classes=80):
    """A COCO folder of random images; `images`: number -> list of category ids, which run against the alphabet."""
    categories = [{"id": 2 * k + 1, "name": f"class{num_classes - k:02d}"} for k in range(num_classes)]
    files = {number: f"COCO_{part}_{number:012d}.jpg" for number in images}
    box = {"iscrowd": 0, "area": 4.0, "bbox": [1.0, 1.0, 2.0, 2.0]}
    annotations = [
        {"id": 100 * number + k, "image_id": number, "category_id": key, **box}
        for number, keys in images.items()
        for k, key in enumerate(keys)
    ]
    infos = [{"id": number, "file_name": file, "height": 24, "width": 32} for number, file in files.items()]
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / part).mkdir()
    content = {"categories": categories, "images": infos, "annotations": annotations}
    (root / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))
    for number, file in files.items():
        pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / part / file)


IMAGES = {9: [1, 3, 3], 4: [159], 7: [], 2: [3, 159]}
