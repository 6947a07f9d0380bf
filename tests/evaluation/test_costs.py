from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from m2dr.core.records import Cut
from m2dr.evaluation.costs import (
    Candidate,
    Cost,
    Costs,
    Shape,
    frontier,
)

CELLS = {
    Cut(1, 8): Cost(1.0, 2.0, 300.0, 32, 10_000, 500),
    Cut(2, 8): Cost(1.5, 3.0, 150.0, 32, 20_000, 900),
}
COSTS = Costs(
    "models/mine", "abc", "pydocs", Cut(2, 8), "same", 40, 8, 5.5, "f32", "x86_64, 2 cores", CELLS
)  # fmt: skip


@given(
    width=st.integers(1, 6), inner=st.integers(1, 6), query=st.integers(1, 6), key=st.integers(1, 6),
    gated=st.booleans(), tokens=st.integers(1, 5), layer=st.integers(1, 3), head=st.booleans(),
)  # fmt: skip
def test_multiply_adds_are_those_of_the_matrix_products_one_by_one(
    width: int, inner: int, query: int, key: int, gated: bool, tokens: int, layer: int, head: bool
) -> None:
    products = [  # rows, common, columns
        (tokens, width, query), (tokens, width, key), (tokens, width, key),
        (tokens, query, tokens), (tokens, tokens, query), (tokens, query, width),
        (tokens, width, inner), (tokens, inner, width), *([(tokens, width, inner)] if gated else []),
    ]  # fmt: skip
    block = sum(rows * common * columns for rows, common, columns in products)
    shape = Shape(width, inner, query, key, gated, exits={layer: width * width} if head else {})

    assert shape.encode(layer, tokens) == layer * block + (width * width if head else 0)


def test_queries_search_the_documents_that_they_were_trained_with() -> None:
    fixed = replace(COSTS, documents_from="last")

    assert COSTS.document_layer(Cut(1, 8)) == 1
    assert fixed.document_layer(Cut(1, 8)) == 2


# The frontier


NAMES = ("latency", "bytes", "multiply_adds")
few = st.sampled_from([0.5, 1.0, 1.5, 2.0, 4.0])  # so that ties are common
tables = st.dictionaries(
    st.builds(Cut, st.integers(1, 12), st.sampled_from([8, 16, 32, 64])),
    st.tuples(st.sampled_from([0.1, 0.2, 0.3, 0.4]), few, few, few),
    min_size=1,
    max_size=20,
).map(
    lambda rows: [
        Candidate(cut, quality, dict(zip(NAMES, costs, strict=True)))
        for cut, (quality, *costs) in rows.items()
    ]
)


@given(table=tables, names=st.sampled_from([NAMES[:1], NAMES[:2], NAMES]))
def test_the_frontier_is_all_that_nothing_else_dominates(
    table: list[Candidate], names: tuple[str, ...]
) -> None:
    expected = set()
    for one in table:
        beaten = False
        for other in table:
            no_worse = other.quality >= one.quality
            better = other.quality > one.quality
            for name in names:
                no_worse = no_worse and other.costs[name] <= one.costs[name]
                better = better or other.costs[name] < one.costs[name]
            beaten = beaten or (no_worse and better)
        if not beaten:
            expected.add(one.cut)

    found = frontier(table, names)

    assert {one.cut for one in found} == expected
    assert len(found) == len(expected)
    assert [one.quality for one in found] == sorted((one.quality for one in found), reverse=True)
