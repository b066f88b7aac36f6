"""Weight files: what they predict, their preprocessing, the way to torchvision's names and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paths import DATA
from PIL import Image
from safetensors.numpy import save_file

from mlt_jax import models
from mlt_jax.models import pretrained
from mlt_jax.models.base import CAFFE, IMAGENET
from mlt_jax.models.resnet import SHAPES

KEY = jax.random.key(0)
WEIGHTS = "resnet50_imagenet.npz"


@pytest.fixture(scope="module")
def reference(real_data):
    """24 images of the mini VOCdevkit, warped, with the features and the class they must give."""
    kept = real_data("mini_features.npz")
    rows = np.arange(0, len(kept["names"]), len(kept["names"]) // 23)[:24]

    def image(name):
        year, number = name.split("/")
        path = DATA / "VOCdevkit" / year / "JPEGImages" / f"{number}.jpg"
        return np.asarray(Image.open(path).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR))

    return jnp.asarray(np.stack([image(n) for n in kept["names"][rows]])), kept["features"][rows], kept["top1"][rows]


@pytest.fixture(scope="module")
def imagenet(real_data):
    real_data("voc2007_labels.npz")
    return models.build("resnet50", num_classes=1000, key=KEY, pretrained=DATA / WEIGHTS)


def cosine(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize("conv", ["lax", "matmul"])
def test_reference_features_are_reproduced(reference, conv):
    images, features, _ = reference
    model = models.build("resnet50", num_classes=20, key=KEY, pretrained=DATA / WEIGHTS, conv=conv)
    found = np.asarray(jax.jit(model.features)(model.params, model.stats, images))
    assert cosine(found, features).min() >= 0.9999
    np.testing.assert_allclose(found, features, atol=0.01 * features.max())


def test_imagenet_classes_are_predicted(reference, imagenet):
    images, _, top1 = reference
    logits, _ = jax.jit(lambda x: imagenet.apply(imagenet.params, imagenet.stats, x, False))(images)
    assert np.mean(np.asarray(logits).argmax(1) == top1) >= 0.95


def test_maps_average_to_the_features(reference, imagenet):
    images = reference[0][:2]
    maps = imagenet.features(imagenet.params, imagenet.stats, images, maps=True)
    assert maps.shape == (2, 7, 7, 2048)
    found = imagenet.features(imagenet.params, imagenet.stats, images)
    np.testing.assert_allclose(jnp.mean(maps, (1, 2)), found, atol=1e-4)


def test_weights_bring_version_preprocessing_and_a_head_only_for_their_classes(real_data, imagenet):
    assert imagenet.preprocess == CAFFE
    kernel = real_data(WEIGHTS)["head.kernel"]
    np.testing.assert_array_equal(imagenet.params["head"]["kernel"], kernel.astype(np.float32))
    twenty = models.build("resnet50", num_classes=20, key=KEY, pretrained=DATA / WEIGHTS)
    assert twenty.params["head"]["kernel"].shape == (2048, 20)
    with pytest.raises(ValueError, match=r"version: 'v1.5', but the weights of .* are v1"):
        models.build("resnet50", num_classes=20, key=KEY, pretrained=DATA / WEIGHTS, version="v1.5")
    with pytest.raises(ValueError, match="another network"):
        models.build("resnet18", num_classes=20, key=KEY, pretrained=DATA / WEIGHTS)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_torchvision_names_go_there_and_back(tmp_path, name):
    model = models.build(name, num_classes=10, key=KEY)
    moved = jax.tree.map(lambda leaf: leaf + jnp.arange(leaf.size, dtype=jnp.float32).reshape(leaf.shape), model.stats)
    tensors = pretrained.to_torchvision(model.params, moved, SHAPES[name])
    assert tensors["conv1.weight"].shape == (64, 3, 7, 7)
    assert tensors["fc.weight"].shape == (10, SHAPES[name].features)
    assert tensors["layer2.0.downsample.1.running_var"].shape == tensors["layer2.0.downsample.0.weight"].shape[:1]
    assert ("layer1.0.downsample.0.weight" in tensors) == (name == "resnet50")
    np.testing.assert_array_equal(
        tensors["layer3.1.conv2.weight"][4, 3], model.params["stage3_block2"]["unit2"]["conv"]["kernel"][:, :, 3, 4]
    )
    tensors["bn1.num_batches_tracked"] = np.array(7)
    save_file(tensors, tmp_path / "model.safetensors")
    back = models.build(name, num_classes=10, key=jax.random.key(9), pretrained=tmp_path / "model.safetensors")
    assert back.preprocess == IMAGENET
    assert jax.tree.structure(back.params) == jax.tree.structure(model.params)
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, back.params, model.params)))
    assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, back.stats, moved)))


def test_every_tensor_of_torchvision_has_a_place():
    model = models.build("resnet50", num_classes=1000, key=KEY)
    names = pretrained.torchvision_names(SHAPES["resnet50"])
    assert len(names) == 267 == len(set(names.values())) == len(jax.tree.leaves((model.params, model.stats)))


def test_missing_files_and_pickles_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no file"):
        models.build("resnet50", num_classes=2, key=KEY, pretrained=tmp_path / "none.npz")
    with pytest.raises(FileNotFoundError, match="neither a file nor a repository"):
        models.build("resnet50", num_classes=2, key=KEY, pretrained="resnet50")
    (tmp_path / "weights.pth").write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match="pickles are not read"):
        models.build("resnet50", num_classes=2, key=KEY, pretrained=tmp_path / "weights.pth")
    np.savez(tmp_path / "object.npz", **{"stem.conv.kernel": np.array([{}], dtype=object)})
    with pytest.raises(ValueError, match="allow_pickle"):
        models.build("resnet50", num_classes=2, key=KEY, pretrained=tmp_path / "object.npz")


def test_without_a_network_the_error_says_what_to_download(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    words = r"could not fetch http://127.0.0.1:9/timm/resnet50.tv_in1k/resolve/main/model.safetensors .* pass its path"
    with pytest.raises(ConnectionError, match=words):
        models.build("resnet50", num_classes=2, key=KEY, pretrained="timm/resnet50.tv_in1k")
    assert not list(tmp_path.rglob("*.part"))


def test_a_hub_file_is_fetched_once(tmp_path, monkeypatch):
    model = models.build("resnet18", num_classes=5, key=KEY)
    served = tmp_path / "hub" / "timm" / "tiny" / "resolve" / "main"
    served.mkdir(parents=True)
    save_file(pretrained.to_torchvision(model.params, model.stats, SHAPES["resnet18"]), served / "model.safetensors")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", (tmp_path / "hub").as_uri())
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    first = models.build("resnet18", num_classes=5, key=jax.random.key(3), pretrained="timm/tiny")
    (served / "model.safetensors").unlink()
    again = models.build("resnet18", num_classes=5, key=jax.random.key(4), pretrained="timm/tiny")
    for found in (first, again):
        assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, found.params, model.params)))


@pytest.mark.parametrize(("name", "preprocess"), [("small", IMAGENET), ("resnet18", CAFFE)])
def test_saved_weights_are_read_back_to_the_bit(tmp_path, name, preprocess):
    model = models.build(name, num_classes=3, key=KEY)
    path = pretrained.save(tmp_path / "weights", name, model.params, model.stats, preprocess)
    again = models.build(name, num_classes=3, key=jax.random.key(1), pretrained=path)
    assert again.preprocess == preprocess
    jax.tree.map(np.testing.assert_array_equal, (again.params, again.stats), (model.params, model.stats))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(("name", "head"), [("small", "agcn"), ("csra", "linear"), ("wsic", "linear")])
def test_other_heads_are_saved_by_our_names(tmp_path, name, head):
    model = models.build(name, num_classes=3, key=KEY, head=head)
    path = pretrained.save(tmp_path / "weights", name, model.params, model.stats, model.preprocess)
    assert path.suffix == ".npz"
    with np.load(path, allow_pickle=False) as archive:
        heads = {key for key in archive if key.startswith("head.")}
        size = sum(archive[key].size for key in archive)
    assert size == sum(x.size for x in jax.tree.leaves((model.params, model.stats)))
    assert heads
    assert (len(heads) == len(jax.tree.leaves(model.params))) == (name != "small")
