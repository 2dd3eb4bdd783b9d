#include "text/tokenizer_inner.h"
int32_t colibri_normalize(colibri_encoding *e, uint32_t start, uint32_t end)
{
    (void)e; (void)start; (void)end;
    return COLIBRI_ERROR_UNSUPPORTED;
}
