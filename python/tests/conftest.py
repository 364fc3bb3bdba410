import pytest

import umemcg

MIB = 1 << 20


@pytest.fixture
def engine() -> umemcg.Engine:
    return umemcg.Engine(16 * MIB, workers=1)


@pytest.fixture
def group(engine: umemcg.Engine) -> umemcg.Group:
    group = engine.group("/a")
    group["memory.max"] = MIB
    return group


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list:
    """The exceptions raised by callbacks."""
    import sys

    raised: list = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: raised.append(told.exc_value))
    return raised
