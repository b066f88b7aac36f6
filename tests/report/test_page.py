import base64
import hashlib
import json
import re
from html import unescape

import pytest

from mlt_jax.report.page import page, section, tiles, write

EVIL = "</script><script>alert(1)</script>"


def test_names_are_escaped_and_cannot_end_the_data():
    text = page(
        EVIL, EVIL, [section(EVIL, EVIL, "<p>body</p>", key="one"), tiles([(EVIL, EVIL)])], data={"ids": [EVIL]}
    )
    assert "alert(1)</script>" not in text
    assert text.count("<script") == 2
    assert text.count("&lt;script&gt;alert(1)") == 7  # title twice, subtitle, heading, intro, tile twice
    assert json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]) == {"ids": [EVIL]}
    assert "<p>body</p>" in text


@pytest.mark.parametrize("data", [None, {"wrong": []}])
def test_the_policy_allows_the_pages_own_style_and_script_and_no_other(data):
    text = page("a", "b", [], data=data)
    policy = unescape(re.search(r'Content-Security-Policy" content="(.*?)"', text)[1])
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert "img-src data: 'self' file:; style-src" in unescape(page("a", "b", [], data=data, beside=True))

    def digest(kind):
        inside = re.search(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)[1]
        return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"

    assert rules["style-src"] == digest("style")
    assert rules.get("script-src") == (None if data is None else digest("script"))


def test_a_section_without_a_body_is_left_out_and_a_folded_one_can_be_opened():
    assert section("title", "intro", "") == ""
    assert section("title", "", "body", key="k") == '<section id="k"><h2>title</h2>body</section>'
    assert section("title", "", "body", folded=True).startswith("<section><details><summary><h2>title</h2></summary>")


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path = write(tmp_path / "new" / "page.html", "old")
    assert path.read_text() == "old"
    with pytest.raises(UnicodeEncodeError):
        write(path, "half \ud800")
    assert path.read_text() == "old"
    assert write(path, "naïve").read_text(encoding="utf-8") == "naïve"
    assert [p.name for p in path.parent.iterdir()] == ["page.html"]
