"""Makes the data of the five projects, in this folder."""

import csv
import json
import random
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from PIL import Image, ImageDraw

rng, random_numbers = random.Random(0), np.random.default_rng(0)

# text.txt: some pages of Python's documentation
Path("text.txt").write_text("\n".join(topics[name] for name in sorted(topics))[:100_000])

# houses.csv: a price that depends on the size, the year and the town
with Path("houses.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["size", "year", "town", "price"])
    for _ in range(2000):
        size, year, town = rng.randint(30, 250), rng.randint(1900, 2020), rng.choice(["Aa", "Bree", "Cob"])
        price = size * {"Aa": 2000, "Bree": 3000, "Cob": 4500}[town] + 800 * (year - 1900)
        table.writerow([size, year, town, round(price + rng.gauss(0, 20_000))])

# labels_*.npz: five labels, each of which depends on all inputs
rule, shift = random_numbers.normal(size=(20, 5)), np.array([0, 0, 0, 0, -5])
for name, number in {"train": 2000, "val": 500}.items():
    inputs = random_numbers.normal(size=(number, 20)).astype("float32")
    np.savez(f"labels_{name}.npz", inputs=inputs, targets=(inputs @ rule + shift > 0).astype("float32"))

# shapes/: images with a disc (class 1) and a square (class 2) on noise; the frame of a mask does not count
for name, number in {"train": 400, "val": 100}.items():
    for folder in ("images", "masks"):
        Path("shapes", name, folder).mkdir(parents=True, exist_ok=True)
    for index in range(number):
        image = Image.fromarray(random_numbers.integers(0, 256, (24, 24, 3)).astype("uint8"))
        mask = Image.new("L", (24, 24))
        for draw, color in (ImageDraw.Draw(image), "red"), (ImageDraw.Draw(mask), None):
            state = random.Random(f"{name} {index}")
            x, y, u, v = (state.randint(0, 16) for _ in range(4))
            draw.ellipse((x, y, x + 8, y + 8), fill=color or 1)
            draw.rectangle((u, v, u + 6, v + 6), fill=color or 2)
        ImageDraw.Draw(mask).rectangle((0, 0, 23, 23), outline=255)
        image.save(Path("shapes", name, "images", f"{index}.png"))
        mask.save(Path("shapes", name, "masks", f"{index}.png"))

# tags_*.jsonl: a number after "at" is a time (1), one after "for" is a price (2)
for name, number in {"train": 2000, "val": 500}.items():
    with Path(f"tags_{name}.jsonl").open("w") as file:
        for _ in range(number):
            words = [rng.choice(["at", "for", "see"]) for _ in range(rng.randint(3, 20))]
            words = [
                word for first in words for word in (first, str(rng.randint(1, 30)))[: rng.randint(1, 2)]
            ]
            tags = [
                {"at": 1, "for": 2}.get(before, 0) * word.isdigit()
                for before, word in zip(["", *words], words, strict=False)
            ]
            file.write(json.dumps({"words": words, "tags": tags}) + "\n")
