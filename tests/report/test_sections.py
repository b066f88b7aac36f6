import re
from html import unescape

import jax.numpy as jnp
import numpy as np
import pytest
from audited import CLASSES, EVIL, simulated_audit

from mlt_jax.report import sections
from mlt_jax.transition import Status


@pytest.fixture(scope="module")
def audit():
    return simulated_audit()


def test_a_page_of_many_classes_says_which_it_draws(audit, monkeypatch):
    monkeypatch.setattr(sections, "MOST_CHARTS", 3)
    order = [2, 0, 1, 3]
    drawn = [
        sections.heat_maps(audit.found, audit.classes, order),
        sections.curves(audit, order),
        sections.mixtures(audit, order),
        sections.partners(audit, order),
    ]
    for text in drawn:
        assert text.count("<figure>") == 3
        assert "The 3 most suspect of 4 classes." in text
        assert text.index("&quot;dog&quot;") < text.index("<h3>cat")


def test_the_noisiest_class_comes_first_with_its_rates_and_suspects(audit):
    T = audit.found.T.at[2].set(jnp.array([[0.75, 0.25], [0.125, 0.875]]))
    text = sections.rates(audit.found._replace(T=T), audit.classes, suspects=np.array([7, 8, 1234, 9]))
    rows = text.split('<div class="class">')[1:]
    names = [unescape(re.search(r"<b>(.*?)</b>", row)[1]) for row in rows]
    assert names == [*CLASSES[:2], CLASSES[3], CLASSES[2]]  # the others have rates of 0.1 and 0.3
    assert "25.0 %" in rows[3]
    assert "12.5 %" in rows[3]
    assert "1,234" in rows[3]
    assert EVIL not in text
    assert '<line class="true"' not in text
    assert sections.rates(audit.found, CLASSES, true_T=np.asarray(T)).count('<line class="true"') == 8


def test_a_class_without_an_estimate_says_so(audit):
    found = audit.found._replace(status=audit.found.status.at[:2].set(Status.UNIDENTIFIABLE))
    text = sections.rates(found, audit.classes)
    assert text.count('a guess">unidentifiable</span>') == 2
    assert text.count('by another method">fallback</span>') == 2


def test_classes_nobody_can_judge_are_listed_apart_however_noisy(audit):
    T = audit.found.T.at[:2].set(jnp.array([[0.1, 0.9], [0.9, 0.1]]))
    status = audit.found.status.at[0].set(Status.UNIDENTIFIABLE).at[1].set(Status.TOO_FEW)
    text = sections.rates(audit.found._replace(T=T, status=status), audit.classes, pick={0, 2})
    judged, apart = text.split("2 classes that cannot be judged")
    names = [re.findall(r'<div class="class">.*?>(.*?)</b', part.replace("button>", "b>")) for part in (judged, apart)]
    assert [list(map(unescape, part)) for part in names] == [list(CLASSES[2:]), list(CLASSES[:2])]
    assert "40 %</text>" in judged  # the scale is that of the rates that are known
    assert text.count("data-column") == 2
    for word in ("unidentifiable", "too few", "fallback"):
        assert f"<dt>{word}</dt><dd>" in apart
    assert "cannot be judged" not in sections.rates(audit.found, audit.classes)
    assert 'id="guesses"' in sections.rates(audit.found._replace(status=np.full(4, Status.TOO_FEW)), audit.classes)


def test_partners_are_those_that_come_with_the_class(audit):
    values = audit.labels.values.copy()
    values[:, 1] = values[:, 0]  # the second class is always with the first
    together = audit._replace(labels=audit.labels._replace(values=values), wrong=np.zeros_like(audit.wrong))
    text = sections.partners(together, [0])
    assert "<small>100 % with, 0 % without</small>" in text


def test_one_class_has_no_partners(audit):
    one = audit._replace(labels=audit.labels._replace(values=audit.labels.values[:, :1], classes=("cat",)))
    assert sections.partners(one, [0]) == ""


def test_losses_of_training_take_the_place_of_those_of_the_predictions(audit):
    losses = np.random.default_rng(0).random((2, *audit.wrong.shape)).astype(np.float32)
    own, given = sections.mixtures(audit, [0, 1, 2, 3]), sections.mixtures(audit, [0, 1, 2, 3], losses)
    assert own.count("<figure>") == given.count("<figure>") == 4
    assert own != given


def test_the_page_says_which_noise_the_rates_suppose(audit):
    doubt = "'cat' & 'dog': mistakes of the two go together."
    for status, word in ((Status.COUNTED, "were counted"), (Status.POSTERIOR, "level off at both ends")):
        found = audit.found._replace(status=np.full(len(audit.classes), status))
        assert word in sections.assumption(found, ())
        assert "&amp; &#x27;dog&#x27;: mistakes" in sections.assumption(found, [doubt])
    assert sections.assumption(audit.found._replace(status=np.full(len(audit.classes), Status.FALLBACK)), ()) == ""
    counted = audit._replace(found=audit.found._replace(status=np.full(len(audit.classes), Status.COUNTED)))
    assert "does not level off" in sections.curves(counted, range(len(audit.classes)))
