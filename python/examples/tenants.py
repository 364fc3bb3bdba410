"""Two tenants share a pool. One reads a thousand pages once, the other keeps its forty in use."""

import umemcg


def page(cache: umemcg.ObjectCache, number: int) -> memoryview:
    """Gets a page, or loads and stores it for the tenant that the program works for."""
    return cache.get_or_insert(number.to_bytes(8, "little"), lambda: bytes(8192))


def main() -> None:
    engine = umemcg.Engine(pool_bytes=16 << 20)
    scanning, quiet = engine.group("/scanning"), engine.group("/quiet")
    for tenant in (scanning, quiet):
        tenant["memory.max"] = 2 << 20

    pages = umemcg.ObjectCache(engine, "pages")
    for turn in range(25):
        for number in range(40):
            with scanning:
                page(pages, 1_000_000 + turn * 40 + number)
            with quiet:
                page(pages, number)
    print(f"quiet: {pages.stats(quiet)['hits']} of 1000 look-ups hit")
    print(f"scanning: {scanning.usage >> 10} KiB of 2048, {pages.stats(scanning)['evicted']} pages evicted")
    assert pages.stats(quiet)["hits"] == 960 and scanning.usage <= 2 << 20

    # Memory of the program's own is charged, too, and pages give way to it.
    with scanning, umemcg.Account() as buffers:
        buffers.try_grow(1 << 20)
        try:
            buffers.try_grow(1500 << 10)
        except umemcg.Refused as refused:
            print(f"{refused.group}: {refused.wanted} bytes refused, {refused.free} are free")


if __name__ == "__main__":
    main()
