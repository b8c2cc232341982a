"""experiment=airbench: its network, its first weights, and runs on files in CIFAR's format."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from example_projects import use_example
from run_folders import assert_same_state, rows, weights
from training_runs import Train, whole_and_resumed

from examples.airbench.airbench import AirbenchNet, AlternatingFlip
from hydrant.errors import ConfigError

SMALL = (
    "experiment=airbench", "model.widths=[4,8,8]", "global_batch_size=8", "eval_batch_size=10", "duration=10",
    "precision=fp32", "tracker=local",
)  # fmt: skip


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    use_example("airbench", monkeypatch)


def network(**changes: Any) -> AirbenchNet:
    settings = {
        "input_shape": (3, 12, 12),
        "num_classes": 5,
        "widths": [4, 8, 8],
        "scale": 1 / 9,
        "views": "image",
    }
    return AirbenchNet(**{**settings, **changes})


@pytest.mark.slow
@pytest.mark.parametrize("published", ["cifar10"], indirect=True)
def test_the_experiment_trains_and_resumes_exactly(
    published: Any, train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*SMALL, "save_every=5", f"data.root={tmp_path / 'data'}")
    whole, resumed = whole_and_resumed(train, monkeypatch, words, stop_at=7)
    assert rows(whole) == rows(resumed)
    assert_same_state(weights(whole), weights(resumed))


def test_without_data_it_says_where_to_put_the_files(
    train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*SMALL, status=2)
    message = capsys.readouterr().err
    assert f"CIFAR-10 is not in {workdir / 'data/cifar10/cifar-10-batches-py'}" in message
    assert "data.download=true" in message


def test_patches_are_white_after_the_first_convolution() -> None:
    torch.manual_seed(0)
    images = torch.randn(64, 3, 12, 12).cumsum(-1).cumsum(-2)
    model = network()
    model.whiten(images)
    assert not model.whitening.weight.requires_grad
    outputs = F.conv2d(images, model.whitening.weight).transpose(0, 1).flatten(1)  # (24, N)
    torch.testing.assert_close(outputs[12:], -outputs[:12])
    covariance = (outputs[:12] @ outputs[:12].T / outputs.shape[1]).detach()
    torch.testing.assert_close(covariance, torch.eye(12), atol=0.01, rtol=0)


def test_convolutions_begin_as_the_identity_of_their_first_channels() -> None:
    group, images = network().groups[1], torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(group.conv1(images)[:, :4], images)


def test_evaluations_see_several_views() -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 3, 12, 12)
    once = network().eval()
    assert not torch.allclose(once(images), once(images.flip(-1)))
    mirrored = network(views="mirror").eval()
    mirrored.load_state_dict(once.state_dict())
    torch.testing.assert_close(mirrored(images), mirrored(images.flip(-1)))
    model = network(views="mirror_translate").eval()
    model.load_state_dict(once.state_dict())
    shifted = F.pad(images, (1, 1, 1, 1), mode="reflect")
    places = [images, shifted[..., :12, :12], shifted[..., 2:, 2:]]
    both = [(once(view) + once(view.flip(-1))) / 2 for view in places]
    torch.testing.assert_close(model(images), both[0] / 2 + both[1] / 4 + both[2] / 4)
    torch.testing.assert_close(model.train()(images), once.train()(images))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"input_shape": (3, 8, 8)}, "model: "),
        ({"input_shape": (64,)}, "model: "),
        ({"num_classes": None}, "model: "),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        network(**changes)


def test_an_alternating_flip_mirrors_each_image_in_every_other_epoch() -> None:
    images, draws = torch.rand(400, 3, 4, 4), torch.arange(400)
    augment = AlternatingFlip().for_samples(400)
    first, second, third = (augment(images, draws + 400 * epoch, 7) for epoch in range(3))
    is_mirrored = (first != images).flatten(1).any(1)
    assert 150 < is_mirrored.sum() < 250
    assert torch.equal(first, torch.where(is_mirrored.view(-1, 1, 1, 1), images.flip(-1), images))
    assert torch.equal(second, first.flip(-1))
    assert torch.equal(third, first)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_its_shifts_fill_by_reflection(dtype: torch.dtype) -> None:
    images = torch.arange(32 * 30).view(32, 1, 6, 5).remainder(251).to(dtype)
    shifted = AlternatingFlip(2, flip=False)(images, torch.arange(32), 7)
    assert shifted.dtype == dtype
    places = set[tuple[int, int]]()
    for image, result in zip(images, shifted, strict=True):
        padded = torch.nn.functional.pad(image.float(), (2, 2, 2, 2), mode="reflect").to(dtype)
        found = [
            (r, c) for r in range(5) for c in range(5) if torch.equal(padded[:, r : r + 6, c : c + 5], result)
        ]
        assert found
        places.update(found)
    assert len(places) > 10


def test_a_shift_beyond_the_reflection_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"data\.augment\.max_shift: 4 is too large"):
        AlternatingFlip(4, flip=False)(torch.rand(1, 3, 4, 6), torch.arange(1), 7)
