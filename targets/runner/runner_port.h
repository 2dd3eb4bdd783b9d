/*
 * runner_port.h: between the runner and a target's port. The port gives the report a way out and the runner
 * its turns; the runner knows no file, no device and no operating system.
 */
#ifndef COLIBRI_RUNNER_PORT_H
#define COLIBRI_RUNNER_PORT_H

#include "colibri.h"
#include "runner.h"

/* ---- what a port provides ---- */

/* Take bytes of the report. Between two returns of colibri_runner_step() at most RUNNER_OUTPUT_BYTES come. */
#define RUNNER_OUTPUT_BYTES 16384u
void colibri_runner_write(const char *bytes, uint32_t count);
/* Microseconds from any start; 0 where there is no clock. */
uint64_t colibri_runner_clock(void);
/* Deepest stack use in bytes so far; 0 where unknown. */
uint64_t colibri_runner_stack(void);
/* Threads that run units, up to `workers`, this one included. Returns how many there will be: 1 where none can be. */
uint32_t colibri_runner_threads(uint32_t workers);
/* How many units the others of them have run. */
uint64_t colibri_runner_helped(void);
/* Share units among them: colibri.h's parallel hook. Called only where there are two or more. */
void colibri_runner_parallel(colibri_session *session, uint32_t count);
/* The port's own store, for RUNNER_STORE_PORT: colibri.h's fetch and fetched. A port that has none answers
 * COLIBRI_ERROR_FETCH. */
int32_t colibri_runner_fetch(const colibri_fetch_request *request);
int32_t colibri_runner_fetched(uint32_t ticket);
/* Nothing can be done until a fetch ends: a port that can sleep does. */
void colibri_runner_wait(void);

/* ---- what the runner offers ---- */

typedef struct runner runner;

/* The one runner there is: a port runs one job at a time. */
runner *colibri_runner_instance(void);
/* Check the job and bind it. blob and region are 64-byte aligned, region is job->region_bytes long. Returns
 * 0, or the exit code after an error line and the done line were written. */
uint32_t colibri_runner_begin(runner *r, const runner_job *job, uint64_t job_bytes, const void *blob,
                              void *region);
/* A bounded piece of work. Returns 1 while there is more to do. */
uint32_t colibri_runner_step(runner *r);
/* Put a zero-terminated text into the report: for what a port itself has to say. */
void colibri_runner_text(const char *text);
/* The exit code, once colibri_runner_step() has returned 0. */
uint32_t colibri_runner_code(const runner *r);

#endif
