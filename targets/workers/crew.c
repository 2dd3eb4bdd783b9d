/*
 * crew.c: units handed to threads, and the waiting on both sides. No allocation, no system call but crew_port.h's.
 *
 * Why no unit is lost or run twice. An op is opened by one store to `rest`, the number of units left. A worker takes
 * units by compare-and-swap of that one word, rest -> rest - part, and owns units end - rest .. end - rest + part - 1
 * from then on. It looks at `end` and `session` only after it has won, and whoever has won holds the op open: the
 * driver writes them again no earlier than `pending` is 0, to which the winner has not yet added its share. So there is
 * nothing stale to act on: a worker that read `rest` in one op, was descheduled, and wins in a later op whose `rest`
 * happens to be the same number, has correctly taken units of the later op, since nothing but that number entered the
 * swap.
 *
 * What is seen of whose writes. driver: session, end, pending, then rest (release) -> winner (acquire; a swap that
 * follows a swap continues the release): sees the op, and all that earlier ops wrote. worker: units, then
 * pending -= part (release) -> driver reads 0 (acquire): sees all units' results, and every worker's reads are over.
 *
 * Why no wake-up is lost. Sleeper: sleepers += 1, then the system compares `rest` with 0 and sleeps. Driver: rest = n,
 * then reads sleepers. These four are in one total order (seq_cst; the port's compare comes after all that the caller
 * did). If the driver reads sleepers before the sleeper's addition, its store of `rest` came before as well, so the
 * compare sees it, or sees a 0 that other workers have made of it, in which case nothing is left to do: the next
 * opening wakes. Else the driver sees the sleeper and wakes. The same holds for driver_asleep and `pending`, where the
 * one who brings it to 0 looks, and for the end. A wake that comes too late only makes someone look once more.
 *
 * Waiting. A moment of spinning bridges the gap between two ops; then the processor is offered to others, who may be
 * what is waited for; then sleep. Nobody spins for long while another has no processor to run on.
 */
#include "crew.h"

#include "crew_port.h"

#define CREW_ENDS 0x80000000u
#define UNITS_AT_ONCE 0x40000000u
#define SPINS 2000u
#define YIELDS 4u

void colibri_crew_begin(colibri_crew *crew, uint32_t workers)
{
    *crew = (colibri_crew){.workers = workers ? workers : 1u};
}

/* Take units of the open op: fewer the fewer are left, so that all finish together. 0: none are left. */
static uint32_t crew_take(colibri_crew *crew, uint32_t *first)
{
    uint32_t rest = __atomic_load_n(&crew->rest, __ATOMIC_RELAXED);
    while (rest != 0u && (rest & CREW_ENDS) == 0u) {
        uint32_t part = rest / (2u * crew->workers);
        part = part != 0u ? part : 1u;
        if (__atomic_compare_exchange_n(&crew->rest, &rest, rest - part, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)) {
            *first = crew->end - rest;
            return part;
        }
    }
    return 0u;
}

/* Run what can be taken; how many units that was. */
static uint32_t crew_run(colibri_crew *crew, uint32_t worker)
{
    uint32_t first = 0, units = 0;
    for (uint32_t part = crew_take(crew, &first); part != 0u; part = crew_take(crew, &first)) {
        colibri_work(crew->session, worker, first, part);
        units += part;
        if (__atomic_fetch_sub(&crew->pending, part, __ATOMIC_SEQ_CST) == part
            && __atomic_load_n(&crew->driver_asleep, __ATOMIC_SEQ_CST) != 0u) {
            colibri_crew_wake(&crew->pending, 1u);
        }
    }
    return units;
}

/* Wait while *word is zero, or while it is not; returns the value that ended the waiting. */
static uint32_t crew_wait(colibri_crew *crew, const uint32_t *word, int while_zero, uint32_t *asleep)
{
    uint32_t tries = 0;
    uint32_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    while ((value == 0u) == while_zero) {
        if (tries < SPINS) {
            colibri_crew_pause();
        } else if (tries < SPINS + YIELDS) {
            (void)__atomic_fetch_add(&crew->yields, 1u, __ATOMIC_RELAXED);
            colibri_crew_yield();
        } else {
            (void)__atomic_fetch_add(&crew->sleeps, 1u, __ATOMIC_RELAXED);
            (void)__atomic_fetch_add(asleep, 1u, __ATOMIC_SEQ_CST);
            colibri_crew_sleep(word, value);
            (void)__atomic_fetch_sub(asleep, 1u, __ATOMIC_RELAXED);
            tries = 0;                          /* who was woken, though too late, will soon be wanted again */
        }
        tries++;
        value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    }
    return value;
}

void colibri_crew_work(colibri_crew *crew, uint32_t worker)
{
    while ((crew_wait(crew, &crew->rest, 1, &crew->sleepers) & CREW_ENDS) == 0u) {
        (void)crew_run(crew, worker);
    }
}

/* Set `rest` and wake who sleeps on it, as many as are of use. */
static void crew_open(colibri_crew *crew, uint32_t rest, uint32_t useful)
{
    __atomic_store_n(&crew->rest, rest, __ATOMIC_SEQ_CST);
    if (useful != 0u && __atomic_load_n(&crew->sleepers, __ATOMIC_SEQ_CST) != 0u) {
        colibri_crew_wake(&crew->rest, useful);
    }
}

void colibri_crew_parallel(void *user, colibri_session *session, uint32_t count)
{
    colibri_crew *crew = user;
    for (uint32_t first = 0; first < count;) {
        uint32_t part = count - first < UNITS_AT_ONCE ? count - first : UNITS_AT_ONCE;
        crew->session = session;
        crew->end = first + part;
        __atomic_store_n(&crew->pending, part, __ATOMIC_RELAXED);
        crew_open(crew, part, part - 1u);
        crew->driver_units += crew_run(crew, 0u);
        crew->units += part;
        (void)crew_wait(crew, &crew->pending, 0, &crew->driver_asleep);
        first += part;
    }
}

void colibri_crew_end(colibri_crew *crew)
{
    crew_open(crew, CREW_ENDS, crew->workers);
}
