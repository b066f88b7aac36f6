import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mlt_jax.arguments import (
    check_choice,
    check_integer,
    check_key,
    check_number,
    check_seed,
    check_switch,
    shown,
    shuffled,
)


def test_right_arguments_of_any_numeric_type_pass():
    check_choice("per", "cell", ("cell", "class"), "one")
    for value in (0.5, np.float32(0.5), np.array(0.5), jnp.array(0.5)):
        check_number("tau", value, lambda x: 0 < x < 1, "a share")
    for value in (3, np.int8(3), np.array(3), jnp.array(3)):
        check_integer("folds", value, 2, 3)
    check_seed(2**63)
    check_switch("share", np.True_)
    check_key(jax.random.key(0))
    check_key(jax.random.PRNGKey(0))


def test_values_under_jit_are_not_looked_at():
    jax.jit(lambda x: (check_number("tau", x, lambda x: x > 1, ""), check_integer("folds", x, 5), x)[2])(1)


@pytest.mark.parametrize(
    ("check", "error", "message"),
    [
        (lambda: check_choice("per", "row", ("cell",), '"cell"'), ValueError, "per: 'row'; pass \"cell\""),
        (lambda: check_choice("per", [1], ("cell",), '"cell"'), ValueError, 'per: list; pass "cell"'),
        (lambda: check_number("tau", "0.5", bool, "a share"), TypeError, "tau: '0.5'; pass a share"),
        (lambda: check_number("tau", True, bool, "a share"), TypeError, "tau: True; pass a share"),
        (lambda: check_number("tau", np.ones(2), bool, "a share"), TypeError, r"tau: ndarray of shape \(2,\); pass"),
        (lambda: check_number("tau", float("nan"), lambda x: True, "a share"), ValueError, "tau: nan; pass a share"),
        (lambda: check_number("tau", 2, lambda x: x < 1, "a share"), ValueError, "tau: 2; pass a share"),
        (lambda: check_integer("folds", 2.5, 2), TypeError, "folds: 2.5; pass a whole number, 2 or more"),
        (lambda: check_integer("folds", True, 1), TypeError, "folds: True; pass a whole number"),
        (lambda: check_integer("folds", 4, 2, 3), ValueError, "folds: 4; pass a whole number from 2 to 3"),
        (lambda: check_seed(-1), ValueError, "seed: -1; pass a whole number, 0 or more"),
        (lambda: check_switch("share", 1), TypeError, "share: 1; pass True or False"),
        (lambda: check_key(3), TypeError, r"key: 3; pass jax\.random\.key\(seed\)"),
        (lambda: check_key(jax.random.split(jax.random.key(0))), TypeError, r"key: .* of shape \(2,\)"),
    ],
)
def test_wrong_arguments_are_named(check, error, message):
    with pytest.raises(error, match=message):
        check()


def test_errors_show_short_values_only():
    assert shown("x" * 1000) == repr("x" * 1000)[:80]
    assert shown(np.zeros((3, 2))) == "ndarray of shape (3, 2)"


def test_row_numbers_in_another_order_are_known_as_such():
    assert shuffled((2, 0, 1))
    assert shuffled(["1", "0"])
    assert not any(map(shuffled, ((), (0, 1, 2), ("0", "1"), (1, 2, 0, 4), ("b", "a"), (0, 0, 1))))
