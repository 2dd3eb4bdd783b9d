/*
 * store_board.c: the board's own store, for RUNNER_STORE_PORT: the model file from the first byte of a disk on. Knows
 * tickets and sentences; the driver is virtio_block.c's.
 */
#include "board.h"
#include "runner_port.h"
#include "virtio_block.h"

#define TICKETS 64u

static colibri_disk disk;
static uint32_t used;                           /* the disk was asked for */
static uint32_t read_of[TICKETS];

static void pause(void)
{
    __asm__ volatile("yield" : : : "memory");
}

static void number(const char *before, uint64_t value)
{
    char digits[21];
    uint32_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + value % 10u);
        value /= 10u;
    } while (value != 0u);
    colibri_runner_text(before);
    colibri_runner_write(digits + at, (uint32_t)sizeof digits - at);
}

/* Why a read was lost, in a line of its own. */
static void say_lost(void)
{
    if (disk.lost_answer == DISK_SILENT) {
        colibri_runner_text("board: the disk does not answer; it was switched off\n");
        return;
    }
    number("board: the disk cannot be read: sector ", disk.lost_sector);
    number(" was answered with status ", disk.lost_answer);
    number(", ", DISK_TRIES);
    colibri_runner_text(" times\n");
}

static enum disk_read_state wait_for(uint32_t read)
{
    enum disk_read_state state = colibri_disk_ended(&disk, read);
    while (state == DISK_FLYING) {
        pause();
        colibri_disk_look(&disk);
        state = colibri_disk_ended(&disk, read);
    }
    return state;
}

/* The core would refuse the same head by name; here it is a sentence for whoever looks at the board. */
static void say_if_no_model(const void *head, uint64_t bytes, uint64_t file_bytes)
{
    colibri_model model;
    int32_t status = colibri_open(&model, head, bytes, file_bytes, 0);
    if (status < 0) {
        colibri_runner_text("board: the disk does not hold the job's model: ");
        colibri_runner_text(colibri_status_text(status));
        colibri_runner_text("\n");
    }
}

uint32_t colibri_board_disk(uint64_t file_bytes, uint64_t bytes, void *to)
{
    used = 1u;
    if (colibri_disk_open(&disk) == 0u) {
        colibri_runner_text("board: there is no disk: no virtio block device that this driver can read\n");
        return BOARD_EXIT_NO_JOB;
    }
    if (disk.bytes < file_bytes) {
        number("board: the disk is too short: it has ", disk.bytes);
        number(" bytes, the model ", file_bytes);
        colibri_runner_text("\n");
        return BOARD_EXIT_NO_JOB;
    }
    if (bytes == 0u) {                          /* the head lies elsewhere */
        return 0u;
    }
    int32_t begun = colibri_disk_begin(&disk, 0u, bytes, to);
    if (begun < 0 || wait_for((uint32_t)begun) != DISK_READ) {
        say_lost();
        return BOARD_EXIT_NO_JOB;
    }
    say_if_no_model(to, bytes, file_bytes);
    return 0u;
}

void colibri_board_disk_report(void)
{
    if (used != 0u) {
        number("disk ", disk.version);
        number(" ", disk.reads);
        number(" ", disk.bytes_read);
        number(" ", disk.retries);
        number(" ", disk.out_of_order);
        number(" ", disk.most_in_flight);
        colibri_runner_text("\n");
    }
}

/* ---- the runner's store ---- */

int32_t colibri_runner_fetch(const colibri_fetch_request *request)
{
    if (request->ticket >= TICKETS) {
        return COLIBRI_ERROR_FETCH;
    }
    int32_t begun = colibri_disk_begin(&disk, request->offset, request->bytes, request->destination);
    if (begun < 0) {
        return begun == DISK_FULL ? COLIBRI_WAIT : COLIBRI_ERROR_FETCH;
    }
    read_of[request->ticket] = (uint32_t)begun;
    return COLIBRI_OK;
}

int32_t colibri_runner_fetched(uint32_t ticket)
{
    colibri_disk_look(&disk);
    enum disk_read_state state = colibri_disk_ended(&disk, read_of[ticket]);
    if (state == DISK_LOST) {
        say_lost();
    }
    return state == DISK_FLYING ? COLIBRI_WAIT : state == DISK_READ ? COLIBRI_DONE : COLIBRI_ERROR_FETCH;
}

/* The disk asks for no interrupt: look at it until one more read has ended. */
void colibri_runner_wait(void)
{
    uint32_t before = disk.in_flight;
    while (before != 0u && disk.in_flight == before) {
        pause();
        colibri_disk_look(&disk);
    }
}
