/*
 * example.c: all it takes to use the library on a system with a libc: map a model, plan, give memory, feed a
 * prompt, sample. Build: cc example.c libcolibri.a -o example; run: ./example model.colibri "Once upon a time"
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "colibri.h"

static void check(const char *call, int32_t status)
{
    if (status < 0) {
        fprintf(stderr, "%s: %s (%d)\n", call, colibri_status_text(status), (int)status);
        exit(3);
    }
}

int main(int count, char **argument)
{
    struct stat size;
    int file = count == 3 ? open(argument[1], O_RDONLY) : -1;
    if (file < 0 || fstat(file, &size) != 0) {
        fprintf(stderr, "usage: example MODEL PROMPT\n");
        return 2;
    }
    uint64_t bytes = (uint64_t)size.st_size;
    void *blob = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, 0);

    colibri_model model;
    check("open", blob == MAP_FAILED ? COLIBRI_ERROR_ADDRESS : colibri_open(&model, blob, bytes, bytes, NULL));
    colibri_limits limits = {.struct_bytes = sizeof limits, .context = 256, .batch = 16, .sequences = 1,
                             .workers = 1, .logit_rows = 1, .text_bytes = 1024};
    colibri_plan_result plan = {.struct_bytes = sizeof plan};
    check("plan", colibri_plan(&model, &limits, &plan, NULL));
    colibri_session *session = NULL;
    void *pool = aligned_alloc(64, (plan.pool_bytes + 63) / 64 * 64);
    check("start", pool == NULL ? COLIBRI_ERROR_POOL_SMALL
                                : colibri_start(&model, &limits, NULL, pool, plan.pool_bytes, &session, NULL));

    uint32_t ids[256], tokens = 0, fed = 0;
    check("encode", colibri_encode(session, argument[2], (uint32_t)strlen(argument[2]), COLIBRI_TEXT_BOS,
                                   COLIBRI_UNLIMITED, ids, 200, &tokens));
    colibri_decoder decoder = {{0}};
    colibri_sampling sampling = {.struct_bytes = sizeof sampling, .top_p = 1, .repetition_penalty = 1};
    for (uint32_t end = tokens + 40; tokens < end;) {
        while (fed < tokens) {                          /* prompt first, then one token at a time */
            colibri_row row = {0, COLIBRI_NEXT_POSITION, ids[fed], fed + 1 == tokens};
            check("feed", colibri_feed(session, &row, 1));
            check("advance", colibri_advance(session, COLIBRI_UNLIMITED));
            fed++;
        }
        char text[256];
        uint32_t written = 0;
        sampling.position = tokens;
        check("sample", colibri_sample(session, 0, &sampling, NULL, 0, &ids[tokens]));
        check("decode", colibri_decode(session, &decoder, ids[tokens++], 0, text, sizeof text, &written));
        fwrite(text, 1, written, stdout);
    }
    printf("\n%llu bytes of pool\n", (unsigned long long)plan.pool_bytes);
    return 0;
}
