"""Static libraries of glue in the cache: taken where the settings are the same and nothing is damaged."""

from pathlib import Path

from aot_tune.plan.kept_glue import fetch_glue, keep_glue
from aot_tune.support.storage import CacheLocation


def test_what_one_build_compiles_another_takes(tmp_path: Path) -> None:
    location = CacheLocation(root=tmp_path / "cache", mode="rw")

    def fetched(name: str, flags: str = "g++ -O2", *settings: str, of: CacheLocation = location) -> dict[str, bytes]:
        return {k: p.read_bytes() for k, p in fetch_glue(tmp_path / name, of, flags, settings).items()}

    assert fetched("one") == {}
    made = tmp_path / "one" / "glue" / "libruntime.a"
    made.parent.mkdir()
    made.write_bytes(b"objects")
    keep_glue(tmp_path / "one", CacheLocation(root=tmp_path / "cache", mode="ro"))
    assert not (tmp_path / "cache").exists()
    keep_glue(tmp_path / "one", location)
    assert fetched("one") == {}, "there it stays a target"
    assert fetched("two") == {"runtime": b"objects"}
    assert fetched("two") == {"runtime": b"objects"}
    assert fetched("two", "g++ -O3") == fetched("two", "g++ -O2", "cuda") == fetched("two", "") == {}
    assert fetched("two", of=CacheLocation(root=tmp_path / "cache", mode="fresh")) == {}
    (kept,) = (tmp_path / "cache" / "glue").iterdir()
    kept.write_bytes(b"damaged")
    assert fetched("three") == {}
    keep_glue(tmp_path / "one", location)
    assert fetched("three") == {"runtime": b"objects"}
    kept.chmod(0o666)
    assert fetched("four") == {}
