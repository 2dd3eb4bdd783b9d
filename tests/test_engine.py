"""The engine in this process: what a session promises, call by call, on random models."""

import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri import hostfloat
from colibri.engine import CoreError, Limits, Model, Sampling, Session
from colibri.errors import BlobError, DoesNotFit, InputError, UsageError
from colibri.generation import Request, generate
from colibri.synth import Spec, write_random_blob
from colibri.text import StopWatch

PROMPT = [3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9, 3, 2, 38, 46, 26, 43, 38, 32]
LIMITS = Limits(context=48, batch=16, logit_rows=16)


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random blobs by name."""
    folder = tmp_path_factory.mktemp("engine")
    made = {}
    for spec, weights in (("mixed", "q4"), ("window", "q8"), ("moe", "f32")):
        made[spec] = folder / f"{spec}.colibri"
        write_random_blob(made[spec], spec, seed=5, kinds=weights)
    return made


@pytest.fixture(params=("mixed", "window", "moe"))
def model(request: pytest.FixtureRequest, blobs: dict[str, Path]) -> Model:
    """Each of them."""
    return Model.open(blobs[request.param])


def all_logits(session: Session, tokens: list[int], split: int = 16, sequence: int = 0) -> np.ndarray:
    """Feed tokens and return the logits of every row."""
    rows = []
    for at in range(0, len(tokens), split):
        part = tokens[at : at + split]
        session.feed(part, sequence, want="all")
        session.finish()
        rows += [session.logits(i).copy() for i in range(len(part))]
    return np.stack(rows).view(np.uint32)


def test_logits_are_a_view_into_the_pool(model: Model) -> None:
    """No copy is made, and nobody can write into it."""
    with Session(model, LIMITS) as session:
        session.feed(PROMPT[:3])
        session.finish()
        row = session.logits()
        pool = np.frombuffer(session.pool, dtype=np.uint8)
        assert np.shares_memory(row, pool) and not row.flags.writeable and row.dtype == np.float32
        assert row.shape == (model.info().vocab,) and np.isfinite(row).all() and np.ptp(row) > 0
        with pytest.raises(UsageError, match="no logits for row 1"):
            session.logits(1)
        del row, pool


@pytest.mark.parametrize("split", (1, 3, 5, 16))
def test_prompt_split_does_not_matter(model: Model, split: int) -> None:
    """Any split into feeds gives the same bits."""
    with Session(model, LIMITS) as session:
        expected = all_logits(session, PROMPT)
    with Session(model, LIMITS) as session:
        assert np.array_equal(all_logits(session, PROMPT, split), expected)


def test_budget_is_kept_and_does_not_matter(model: Model) -> None:
    """A budget of one unit runs one unit per call; the answer is the same."""
    with Session(model, LIMITS) as session:
        expected = all_logits(session, PROMPT[:4])
    with Session(model, LIMITS) as session:
        session.feed(PROMPT[:4], want="all")
        calls, units = 0, 0
        while not session.advance(1):
            now = session.stats().units
            assert now - units <= 1
            calls, units = calls + 1, now
        assert calls > 50
        found = np.stack([session.logits(i) for i in range(4)]).view(np.uint32)
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("length", (0, 1, 7, 16, 19))
def test_rewind_then_the_same_again(model: Model, length: int) -> None:
    """After a rewind the session continues as if the rest had never been fed."""
    with Session(model, replace(LIMITS, rewind=32)) as session:
        expected = all_logits(session, PROMPT)
        all_logits(session, [1, 2, 3])
        session.rewind(length)
        assert session.length() == length
        assert np.array_equal(all_logits(session, PROMPT[length:]), expected[length:])


def test_rewind_is_limited_by_the_plan(blobs: dict[str, Path]) -> None:
    """A window cannot be rewound further than planned, and a refusal changes nothing."""
    with Session(Model.open(blobs["window"]), replace(LIMITS, rewind=2)) as session:
        all_logits(session, PROMPT)
        with pytest.raises(CoreError) as caught:
            session.rewind(5)
        assert caught.value.status == "REWIND" and session.length() == len(PROMPT)
        session.rewind(len(PROMPT) - 2)
        with pytest.raises(CoreError):
            session.rewind(len(PROMPT))


def test_reset_and_sequences_are_apart(model: Model) -> None:
    """Two sequences in one session do not touch each other; a reset empties one of them."""
    other = PROMPT[::-1]
    with Session(model, LIMITS) as session:
        expected = all_logits(session, PROMPT), all_logits(Session(model, LIMITS), other)
    with Session(model, replace(LIMITS, sequences=2)) as session:
        first, second = [], []
        for a, b in zip(PROMPT, other, strict=True):
            session.feed_rows([(1, b, True), (0, a, True)])
            session.finish()
            second.append(session.logits(0).copy())
            first.append(session.logits(1).copy())
        assert np.array_equal(np.stack(first).view(np.uint32), expected[0])
        assert np.array_equal(np.stack(second).view(np.uint32), expected[1])
        session.reset(1)
        assert (session.length(0), session.length(1)) == (len(PROMPT), 0)
        assert np.array_equal(all_logits(session, other, 7, sequence=1), expected[1])


@pytest.mark.parametrize("workers", (2, 3))
def test_threads_do_not_matter(model: Model, workers: int) -> None:
    """Units handed to several threads give the same bits."""
    with Session(model, LIMITS) as session:
        expected = all_logits(session, PROMPT)
    with Session(model, replace(LIMITS, workers=workers)) as session:
        assert np.array_equal(all_logits(session, PROMPT), expected)


def test_two_sessions_in_two_threads(model: Model) -> None:
    """Sessions share nothing, so two threads may run two of them."""
    with Session(model, LIMITS) as session:
        expected = all_logits(session, PROMPT)
    found: dict[int, np.ndarray] = {}

    def work(number: int) -> None:
        with Session(model, LIMITS) as session:
            for _ in range(3):
                session.reset()
                found[number] = all_logits(session, PROMPT, 1 + number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(found[number], expected) for number in range(2))


@pytest.mark.parametrize("kv", ("f32", "f16", "q8"))
def test_cache_kinds_run_and_differ_little(model: Model, kv: str) -> None:
    """Every KV kind works, each with bits of its own, near the float32 cache's."""
    with Session(model, replace(LIMITS, kv="f32")) as session:
        expected = all_logits(session, PROMPT).view(np.float32)
    with Session(model, replace(LIMITS, kv=kv)) as session:
        found = all_logits(session, PROMPT).view(np.float32)
    assert np.abs(found - expected).mean() < (0.1 if kv == "q8" else 0.02)
    assert np.array_equal(found, expected) == (kv == "f32")


def test_wanting_logits_does_not_matter(model: Model) -> None:
    """A row's logits are the same whether other rows want theirs or not."""
    with Session(model, LIMITS) as session:
        expected = all_logits(session, PROMPT)[-1]
    with Session(model, replace(LIMITS, logit_rows=1)) as session:
        session.feed(PROMPT[:16], want="none")
        session.finish()
        session.feed(PROMPT[16:], want="last")
        session.finish()
        assert np.array_equal(session.logits().view(np.uint32), expected)
        with pytest.raises(UsageError):
            session.logits(1)


def test_routing_is_ascending_and_its_weights_are_sane(blobs: dict[str, Path]) -> None:
    """The chosen experts come in ascending order, top_k of them; a dense layer has none."""
    with Session(Model.open(blobs["mixed"]), LIMITS) as session:
        session.feed(PROMPT[:5], want="all")
        session.finish()
        for row in range(5):
            assert session.routing(0, row) == []
            for layer in (1, 2):
                chosen = session.routing(layer, row)
                experts = [expert for expert, _ in chosen]
                assert len(chosen) == 3 and experts == sorted(set(experts)) and max(experts) < 4
                assert 0 < sum(weight for _, weight in chosen) <= 1.5  # not renormalised, times 1.5
    with Session(Model.open(blobs["moe"]), LIMITS) as session:
        session.feed(PROMPT[:1])
        session.finish()
        assert sum(weight for _, weight in session.routing(0, 0)) == pytest.approx(1.0, abs=1e-6)


def test_refusals_name_the_reason_and_change_nothing(model: Model) -> None:
    """Every refused call leaves the session as it was."""
    vocab = model.info().vocab
    with Session(model, replace(LIMITS, context=20, batch=8, logit_rows=2)) as session:
        for tokens, status in (([vocab], "TOKEN"), ([1] * 9, "LIMIT")):
            with pytest.raises(CoreError) as caught:
                session.feed(tokens)
            assert caught.value.status == status
        with pytest.raises(CoreError) as caught:
            session.feed([1, 2, 3], want="all")
        assert caught.value.status == "LIMIT"
        with pytest.raises(CoreError) as caught:
            session.feed([1], sequence=1)
        assert caught.value.status == "LIMIT"
        session.feed([1, 2])
        with pytest.raises(CoreError) as caught:
            session.feed([1])
        assert caught.value.status == "BUSY"
        session.finish()
        session.reset()
        expected = all_logits(session, PROMPT, 2)
        with pytest.raises(CoreError) as caught:
            session.feed([1])
        assert caught.value.status == "CONTEXT_FULL" and session.length() == 20
        session.reset()
        assert np.array_equal(all_logits(session, PROMPT, 2), expected)


def test_stop_abandons_what_is_queued(model: Model) -> None:
    """After a stop nothing runs."""
    session = Session(model, LIMITS)
    session.feed(PROMPT[:4])
    session.advance(3)
    session.close()
    with pytest.raises(CoreError) as caught:
        session.feed([1])
    assert caught.value.status == "STOPPED"


def test_greedy_is_the_first_largest_logit(model: Model) -> None:
    """Temperature 0 takes the largest logit, the lower id on a tie."""
    with Session(model, LIMITS) as session:
        session.feed(PROMPT[:6], want="all")
        session.finish()
        for row in range(6):
            assert session.sample(Sampling(), row) == int(np.argmax(session.logits(row)))


def test_draws_depend_on_seed_position_and_sequence_alone(model: Model) -> None:
    """The same numbers give the same token, other numbers another one; shares follow the softmax."""
    with Session(model, LIMITS) as session:
        session.feed(PROMPT[:6])
        session.finish()
        hot = Sampling(temperature=1.0, seed=7)

        def draws(sampling: Sampling, sequence: int = 0) -> list[int]:
            return [session.sample(sampling, position=i, sequence=sequence) for i in range(4000)]

        first = draws(hot)
        assert draws(hot) == first != draws(replace(hot, seed=8)) and draws(hot, 1) != first
        logits = session.logits().astype(np.float64)
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        counted = np.bincount(first, minlength=len(shares)) / len(first)
        assert np.abs(counted - shares).max() < 0.04
        few = set(draws(replace(hot, top_k=3)))
        assert few == set(np.argsort(-logits, kind="stable")[:3].tolist())
        head = set(draws(replace(hot, top_p=0.5)))
        order = np.argsort(-logits, kind="stable")
        needed = int(np.searchsorted(np.cumsum(shares[order]), 0.5)) + 1
        assert head <= set(order[: needed + 1].tolist()) and len(head) >= needed - 1
        near = set(draws(replace(hot, min_p=0.5)))
        assert near <= set(np.nonzero(shares >= 0.4999 * shares.max())[0].tolist())


def test_repetition_penalty_lowers_what_was_said(model: Model) -> None:
    """A strong penalty keeps greedy from repeating a token."""
    with Session(model, LIMITS) as session:
        session.feed(PROMPT[:6])
        session.finish()
        best = session.sample(Sampling())
        assert session.sample(Sampling(repetition_penalty=1000.0), recent=[best]) != best
        assert session.sample(Sampling(repetition_penalty=1000.0, repeat_last=0), recent=[best]) == best


def test_generate_hashes_every_row_fed(model: Model) -> None:
    """The digest is SHA-256 over the logits of prompt and generated rows; the last token has none."""
    import hashlib

    with Session(model, LIMITS) as session:
        answer = generate(session, Request(PROMPT, 10))
    assert len(answer.tokens) == 10 and answer.finish == "length" and answer.rows == len(PROMPT) + 9
    with Session(model, LIMITS) as session:
        rows = all_logits(session, PROMPT + answer.tokens[:-1])
    assert hashlib.sha256(rows.astype("<u4").tobytes()).hexdigest() == answer.digest
    assert answer.tokens == [int(np.argmax(row.view(np.float32))) for row in rows[len(PROMPT) - 1 :]]


def test_generate_ends_as_it_should(model: Model) -> None:
    """By an end id, by length, by a full context; a prompt that is too long is refused before anything
    runs."""
    with Session(model, LIMITS) as session:
        free = generate(session, Request(PROMPT, 10)).tokens
        session.reset()
        ended = generate(session, Request(PROMPT, 10, ends=[free[3]]))
        assert ended.finish == "stop" and ended.tokens == free[: free.index(free[3]) + 1]
        session.reset()
        none = generate(session, Request(PROMPT, 0))
        assert none.tokens == [] and none.rows == len(PROMPT) and none.finish == "length"
        session.reset()
        full = generate(session, Request(PROMPT, 1000))
        assert full.finish == "context" and len(full.tokens) + len(PROMPT) == LIMITS.context
        with pytest.raises(DoesNotFit, match="the context holds 48"):
            generate(session, Request([1] * 49, 1))
        with pytest.raises(UsageError, match="empty"):
            generate(session, Request([], 1))


@pytest.mark.parametrize("slots", (1, 2, 5))
def test_streamed_experts_give_the_same_bits(blobs: dict[str, Path], slots: int) -> None:
    """Experts brought in on demand into few slots, resident weights copied: the same logits."""
    for name in ("moe", "mixed"):
        model = Model.open(blobs[name])
        with Session(model, LIMITS) as session:
            expected = all_logits(session, PROMPT)
        limits = replace(LIMITS, slots=slots, stream_experts=True, resident_copy=True)
        with Session(model, limits) as session:
            assert np.array_equal(all_logits(session, PROMPT), expected)
            stats = session.stats()
            assert (
                stats.pool_used == session.plan.pool_bytes
                and stats.expert_misses > 0
                and stats.bytes_fetched > 0
            )


def test_a_hostile_float_environment_is_really_hostile() -> None:
    """The environment the tests use flushes subnormals and rounds toward zero, and is undone afterwards."""
    tiny, five, three = 1e-310, 5.0, 3.0
    before = (tiny * 0.5, five / three)
    with hostfloat.hostile():
        inside = (tiny * 0.5, five / three)
    assert inside[0] == 0.0 < before[0] and inside[1] < before[1] and (tiny * 0.5, five / three) == before


def test_a_hostile_float_environment_does_not_matter(model: Model) -> None:
    """Whole life of a session inside it."""
    with Session(model, LIMITS) as session:
        expected = all_logits(session, PROMPT)
    with hostfloat.hostile(), Session(model, LIMITS) as session:
        found = all_logits(session, PROMPT)
    assert np.array_equal(found, expected)


def test_stop_strings_are_held_back_and_cut() -> None:
    """Text that may become a stop string waits; the stop string itself is never shown."""
    watch = StopWatch(["\nUser:", "END"])
    shown = "".join(watch.push(piece) for piece in ("Hi", "\n", "Us", "ual", " E", "N", "d\nUse"))
    assert shown == "Hi\nUsual ENd" and not watch.hit
    assert watch.push("r: x") == "" and watch.hit
    other = StopWatch(["abc"])
    assert other.push("xab") == "x" and other.end() == "ab"
    assert StopWatch([]).push("all") == "all"


def test_what_is_no_blob_is_refused_in_one_sentence(tmp_path: Path, blobs: dict[str, Path]) -> None:
    """Missing, empty, foreign, cut and damaged files."""
    file = tmp_path / "x.colibri"
    with pytest.raises(InputError, match="cannot be read"):
        Model.open(file)
    file.write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        Model.open(file)
    file.write_bytes(b"GGUF" + bytes(4096))
    with pytest.raises(BlobError, match="not a Colibri blob"):
        Model.open(file)
    whole = blobs["moe"].read_bytes()
    file.write_bytes(whole[:-64])
    with pytest.raises(BlobError, match="cut short"):
        Model.open(file)
    damaged = bytearray(whole)
    damaged[200] ^= 4
    file.write_bytes(damaged)
    with pytest.raises(BlobError):
        Model.open(file)


def test_check_lists_every_problem(tmp_path: Path, blobs: dict[str, Path]) -> None:
    """Two damaged experts are two problems, by number; an undamaged file has none."""
    model = Model.open(blobs["moe"])
    assert [detail for _, detail in model.check() if detail] == []
    from colibri.blobfile import BlobFile

    gate = BlobFile(blobs["moe"]).find("EXPERT_GATE", 1)
    damaged = bytearray(blobs["moe"].read_bytes())
    for expert in (0, 3):
        damaged[gate.offset + expert * gate.stride + 9] ^= 1
    file = tmp_path / "damaged.colibri"
    file.write_bytes(damaged)
    found = [detail for _, detail in Model.open(file).check() if detail]
    assert len(found) >= 2 and all(detail.status == "ERROR_CORRUPT" for detail in found)
    assert len({detail.index for detail in found}) == 2
    assert [detail for _, detail in Model.open(file).check(level=1) if detail] == []


def test_numbers_are_the_headers() -> None:
    """The few constants Python spells out are the header's."""
    from colibri import engine, library

    c = library.constants()
    assert (engine.UNLIMITED, engine.NEXT_POSITION, engine.ALL_SEQUENCES) == (
        c.UNLIMITED,
        c.NEXT_POSITION,
        c.ALL_SEQUENCES,
    )
    assert set(library.values("colibri_kv_kind")) == {kind.upper() for kind in engine.KV_KINDS}


def test_limits_are_named_when_refused(model: Model) -> None:
    """A bad limit is refused by name."""
    for change, name in (
        ({"context": 0}, "context"),
        ({"batch": 0}, "batch"),
        ({"sequences": 0}, "sequences"),
        ({"workers": 0}, "workers"),
        ({"logit_rows": 17}, "logit_rows"),
    ):
        with pytest.raises(CoreError, match=name):
            model.plan(replace(LIMITS, **change))
    with pytest.raises(UsageError, match="KV kind"):
        model.plan(replace(LIMITS, kv="f8"))


def test_an_interruption_waits_for_the_workers(tmp_path: Path) -> None:
    """Ctrl-C in the middle of the workers' units: raised when the core has returned, and no logit differs."""
    path = tmp_path / "wide.colibri"
    write_random_blob(path, Spec(vocab=2000, hidden=256, layers=6, ff=1024), seed=2)
    tokens = [(i * 37) % 2000 for i in range(64)]
    model = Model.open(path)

    def logits(session: Session, interrupted: bool) -> np.ndarray:
        session.reset()
        session.feed(tokens)
        if interrupted:
            main = threading.main_thread().ident
            threading.Timer(0.01, signal.pthread_kill, [main, signal.SIGINT]).start()
            with pytest.raises(KeyboardInterrupt):
                session.finish()
                time.sleep(20)
        session.finish()
        return session.logits().copy()

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's is ignored
    try:
        with Session(model, Limits(context=64, batch=64, workers=2)) as session:
            expected = logits(session, interrupted=False)
            for _ in range(5):
                assert (logits(session, interrupted=True) == expected).all()
    finally:
        signal.signal(signal.SIGINT, before)
