/*
 * status.c: versions and status phrases. A switch, not a table: tables of pointers become relocated data.
 */
#include "base/base.h"
#include "blob/colibri_format.h"

#ifndef COLIBRI_STATUS_TEXTS
#define COLIBRI_STATUS_TEXTS 1
#endif

const char *colibri_status_text(int32_t status)
{
#if COLIBRI_STATUS_TEXTS
    switch (status) {
    case COLIBRI_OK: return "ok";
    case COLIBRI_DONE: return "done";
    case COLIBRI_AGAIN: return "budget spent, call again";
    case COLIBRI_WAIT: return "waiting for bytes";
    case COLIBRI_ERROR_ARGUMENT: return "bad argument";
    case COLIBRI_ERROR_MAGIC: return "not a Colibri blob";
    case COLIBRI_ERROR_VERSION: return "format version not read by this build";
    case COLIBRI_ERROR_TRUNCATED: return "file shorter than its header says";
    case COLIBRI_ERROR_CORRUPT: return "checksum does not match";
    case COLIBRI_ERROR_FORMAT: return "field out of range or contradicting another";
    case COLIBRI_ERROR_UNSUPPORTED: return "feature not supported by this build";
    case COLIBRI_ERROR_UNKNOWN_SECTION: return "unknown critical section";
    case COLIBRI_ERROR_UNKNOWN_KEY: return "unknown key that must be understood";
    case COLIBRI_ERROR_ALIGN: return "address not aligned";
    case COLIBRI_ERROR_POOL_SMALL: return "pool smaller than the plan";
    case COLIBRI_ERROR_LIMIT: return "more than the planned limits";
    case COLIBRI_ERROR_BUSY: return "work in progress";
    case COLIBRI_ERROR_CONTEXT_FULL: return "planned context is full";
    case COLIBRI_ERROR_TOKEN: return "token beyond the vocabulary";
    case COLIBRI_ERROR_NOT_FINITE: return "infinity or NaN in the activations";
    case COLIBRI_ERROR_FETCH: return "fetch failed";
    case COLIBRI_ERROR_REWIND: return "further back than the planned rewind";
    case COLIBRI_ERROR_FLOAT: return "floating point does not behave as required";
    case COLIBRI_ERROR_STOPPED: return "session is stopped";
    case COLIBRI_ERROR_TEXT_LONG: return "text longer than planned";
    case COLIBRI_ERROR_TEXT: return "no tokenizer, or a broken one";
    case COLIBRI_ERROR_SLOTS: return "wrong number of expert slots";
    case COLIBRI_ERROR_ADDRESS: return "bytes beyond what is addressable";
    case COLIBRI_ERROR_IDENTITY: return "state of another model";
    case COLIBRI_ERROR_LEFT_OUT: return "left out of this build";
    case COLIBRI_ERROR_CONTENT: return "tensor content breaks its contract";
    case COLIBRI_ERROR_OVERFLOW: return "size does not fit in 64 bits";
    default: return "unknown status";
    }
#else
    (void)status;
    return "";
#endif
}

void colibri_version(uint32_t *library, uint32_t *format, uint32_t *abi)
{
    if (library) {
        *library = (uint32_t)COLIBRI_VERSION_MAJOR << 16 | (uint32_t)COLIBRI_VERSION_MINOR << 8 | COLIBRI_VERSION_PATCH;
    }
    if (format) {
        *format = COLIBRI_FORMAT_VERSION;
    }
    if (abi) {
        *abi = COLIBRI_ABI_VERSION;
    }
}
