/*
 * store_board.c: the board's own store, for RUNNER_STORE_PORT: it has none, jobs that ask for it are refused by the
 * first fetch.
 */
#include "runner_port.h"

int32_t colibri_runner_fetch(const colibri_fetch_request *request)
{
    (void)request;
    return COLIBRI_ERROR_FETCH;
}

int32_t colibri_runner_fetched(uint32_t ticket)
{
    (void)ticket;
    return COLIBRI_ERROR_FETCH;
}

void colibri_runner_wait(void)
{
}
