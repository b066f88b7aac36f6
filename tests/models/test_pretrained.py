"""Weight files: what they predict, their preprocessing, the way to torchvision's names and back."""

import hashlib
import json
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from huggingface_hub import constants
from loopback import Server
from paths import DATA
from PIL import Image
from safetensors.numpy import save, save_file

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
    maps = imagenet.features(imagenet.params, imagenet.stats, images, at="maps")
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
    with pytest.raises(ValueError, match=r"object\.npz' cannot be read .*allow_pickle"):
        models.build("resnet50", num_classes=2, key=KEY, pretrained=tmp_path / "object.npz")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub on this machine with a tiny network as "timm/tiny", pinned, and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    with Server() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        model = models.build("small", num_classes=5, key=KEY)
        tensors = pretrained.to_torchvision(model.params, model.stats, SHAPES["small"])
        content = save(tensors)
        digest = hashlib.sha256(content).hexdigest()
        for revision in ("main", "other", COMMIT):
            offer(server, f"/timm/tiny/resolve/{revision}/model.safetensors", content, digest)
        monkeypatch.setitem(pretrained.PINNED, "timm/tiny", pretrained.Pin(COMMIT, digest))
        yield server


COMMIT = "0123456789abcdef0123456789abcdef01234567"


def offer(server, path, content, etag):
    server.files[path] = content
    server.headers[path] = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}


def build_tiny(source="timm/tiny"):
    return models.build("small", num_classes=5, key=jax.random.key(3), pretrained=source)


def gets(server):
    return [path for command, path in server.asked if command == "GET" and path.startswith("/timm/")]


def test_a_hub_file_is_fetched_once_at_the_revision_pinned(hub):
    expected = models.build("small", num_classes=5, key=KEY)
    for _ in range(2):
        found = build_tiny()
        assert all(jax.tree.leaves(jax.tree.map(jnp.array_equal, found.params, expected.params)))
        assert found.preprocess == IMAGENET
    assert gets(hub) == [f"/timm/tiny/resolve/{COMMIT}/model.safetensors"]


def test_without_a_network_the_cache_is_read_and_else_the_error_says_what_to_download(hub):
    build_tiny()
    hub.shutdown()
    hub.server_close()
    build_tiny()
    words = r"model\.safetensors of timm/resnet50\.tv_in1k is not in the hub's cache .*huggingface\.co.* pass its path"
    with pytest.raises(ConnectionError, match=words) as caught:
        models.build("resnet50", num_classes=2, key=KEY, pretrained="timm/resnet50.tv_in1k")
    assert "\n" not in str(caught.value)


def test_a_download_cut_in_the_middle_goes_on(hub):
    hub.cuts[f"/timm/tiny/resolve/{COMMIT}/model.safetensors"] = [100_000]
    build_tiny()
    assert len(gets(hub)) == 2


@pytest.mark.parametrize("source", ["timm/tiny", "timm/tiny@other"])
def test_a_wrong_hash_is_refused_and_fetched_again(hub, source):
    """By the pin, and without one by the hash that the hub itself names."""
    [path] = [path for path in hub.files if (COMMIT if source == "timm/tiny" else "other") in path]
    whole = hub.files[path]
    hub.files[path] = whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(ValueError, match=r"has the hash .* and was deleted; run again"):
        build_tiny(source)
    hub.files[path] = whole
    build_tiny(source)


def test_no_space_is_one_line(hub, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, limits[1]))
    try:
        with pytest.raises(ConnectionError, match=r"could not be fetched \(.*File too large"):
            build_tiny()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    build_tiny()


def test_mean_and_std_come_with_the_weights_and_stay_with_them(hub, tmp_path):
    assert build_tiny("timm/tiny@other").preprocess == IMAGENET
    half = json.dumps({"pretrained_cfg": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}}).encode()
    offer(hub, "/timm/tiny/resolve/main/config.json", half, "c0ffee")
    found = build_tiny("timm/tiny@main")
    assert found.preprocess == IMAGENET._replace(mean=(0.5,) * 3, std=(0.25,) * 3)
    path = pretrained.save(tmp_path / "tuned", "small", found.params, found.stats, found.preprocess)
    assert build_tiny(path).preprocess == found.preprocess


def test_every_resnet_has_imagenet_weights_and_those_of_the_paper_are_pinned():
    pin = pretrained.PINNED["timm/resnet50.tv_in1k"]
    assert pretrained.imagenet("resnet50") == f"timm/resnet50.tv_in1k@{pin.revision}"
    assert pretrained.imagenet("resnet101") == "timm/resnet101.tv_in1k"
    assert pretrained.imagenet("small") is pretrained.imagenet("linear") is None


def test_a_broken_file_is_named(tmp_path):
    for name in ("broken.npz", "broken.safetensors"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 and no more")
        with pytest.raises(ValueError, match=r"pretrained: '.*broken\..*' cannot be read"):
            build_tiny(tmp_path / name)


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
        size = sum(archive[key].size for key in archive if key != "preprocess")
    assert size == sum(x.size for x in jax.tree.leaves((model.params, model.stats)))
    assert heads
    assert (len(heads) == len(jax.tree.leaves(model.params))) == (name != "small")


def test_a_resnet_with_another_head_keeps_its_preprocessing(tmp_path):
    model = models.build("resnet18", num_classes=3, key=KEY, head="csra")
    path = pretrained.save(tmp_path / "weights", "resnet18", model.params, model.stats, model.preprocess)
    again = models.build("resnet18", num_classes=3, key=jax.random.key(5), head="csra", pretrained=path)
    assert again.preprocess == model.preprocess
    images = np.random.default_rng(0).integers(0, 256, (1, 32, 32, 3), np.uint8)
    outputs = [np.asarray(each.apply(each.params, each.stats, images, False)[0]) for each in (model, again)]
    np.testing.assert_array_equal(*outputs)
