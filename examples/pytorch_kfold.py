"""A PyTorch network, K folds and an audit: of the mistakes planted in the labels, how many are found?

    pip install '.[torch]'
    python examples/pytorch_kfold.py

The pictures are scenes of handwritten digits, made on the spot; each shows several digits, so labels are 0/1 per class.
30 % of the labels were lost and 1 % is false. No model predicts a picture that it was trained on.
"""

import numpy as np
import torch
from torch import nn

from mlt_jax import audit_labels, clean_labels, find_label_issues
from mlt_jax.data import load_digits_scenes

SCENES, FOLDS, EPOCHS, BATCH = 2000, 4, 15, 64
MISSED, FALSE = 0.3, 0.01


class Network(nn.Module):
    """Looks for every digit at each of 9 places, and answers mostly by the strongest."""

    def __init__(self, classes: int):
        super().__init__()
        self.places = nn.Unfold(8, stride=8)
        self.head = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, classes))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (n, q) of images (n, 1, 24, 24)."""
        return self.head(self.places(images).transpose(1, 2)).logsumexp(dim=1)


def train(images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """A network trained on labels as they are, mistakes included."""
    model = Network(labels.shape[1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=EPOCHS * -(-len(images) // BATCH))
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = nn.functional.binary_cross_entropy_with_logits(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return model.eval()


def out_of_sample(images: torch.Tensor, labels: torch.Tensor, seed: int = 0) -> np.ndarray:
    """P(label = 1), (n, q): each fold by a network that was trained on the others."""
    fold = np.random.default_rng(seed).permutation(len(images)) % FOLDS
    probs = np.empty(labels.shape, np.float32)
    for k in range(FOLDS):
        model = train(images[fold != k], labels[fold != k])
        with torch.inference_mode():
            probs[fold == k] = torch.sigmoid(model(images[fold == k])).numpy()
        print(f"fold {k + 1} of {FOLDS} predicted")
    return probs


def main() -> dict[str, float]:
    """Prints what the audit finds; returns the numbers."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for so small a network threads only wait for each other
    scenes = load_digits_scenes("train", n=SCENES)
    assert scenes.image is not None
    pixels = np.stack([scenes.image(row)[..., 0] for row in range(SCENES)])
    rng = np.random.default_rng(0)
    wrong = rng.random(scenes.labels.shape) < np.where(scenes.labels == 1, MISSED, FALSE)
    labels = scenes.labels ^ wrong

    images = torch.from_numpy(((pixels - pixels.mean()) / pixels.std()).astype(np.float32)[:, None])
    probs = out_of_sample(images, torch.from_numpy(labels.astype(np.float32)))

    audit = audit_labels(labels, probs=probs, classes=scenes.classes, ids=scenes.ids)
    print(audit)
    issues = find_label_issues(audit)
    hits = wrong[issues.example, issues.column]
    found = {
        "planted": int(wrong.sum()),
        "suspects": len(hits),
        "found": int(hits.sum()),
        "first": float(hits[:500].mean()),
        "left": int((clean_labels(audit, threshold=0.9) != scenes.labels).sum()),
    }
    share, all_labels = 100 * found["first"], 100 * wrong.mean()
    print(f"{found['found']} of {found['planted']} planted mistakes are among {found['suspects']} suspects;")
    print(f"{share:.0f} % of the first 500 suspects are mistakes, {all_labels:.1f} % of all labels;")
    print(f"with the surest ones flipped unseen, {found['left']} mistakes are left.")
    return found


if __name__ == "__main__":
    main()
