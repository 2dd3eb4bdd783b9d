/*
 * tokenizer_faults.c: a tokenizer section with every byte damaged, one at a time, and cut at every length.
 * Whatever it says, the core must end with a status: no read outside, no endless loop. Built with
 * sanitizers; section, text and scratch lie in allocations of exactly their sizes.
 *
 *   tokenizer_faults SECTION TEXT
 */
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT 200u
#define BUDGET 5000u
#define CALLS 2000

static unsigned char *read_file(const char *path, size_t *bytes)
{
    FILE *file = fopen(path, "rb");
    unsigned char *data;
    long size;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    rewind(file);
    *bytes = (size_t)size;
    data = malloc(*bytes);
    if (data == NULL || fread(data, 1, *bytes, file) != *bytes) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    fclose(file);
    return data;
}

/* Encode the text and decode what came out (or, if nothing did, the first ids). Returns the encode's
 * status. */
static int32_t use(const colibri_tokenizer *t, const unsigned char *text, uint32_t bytes)
{
    uint64_t size = colibri_tokenizer_scratch(t, LIMIT);
    uint32_t room = colibri_tokenizer_decode_room(t);
    uint32_t ids[2 * LIMIT];
    uint32_t count = 0;
    uint32_t written;
    uint32_t i;
    int32_t status = COLIBRI_AGAIN;
    int calls;
    colibri_text_stream stream;
    void *scratch = calloc(1, size);
    unsigned char *out = malloc(room);
    for (calls = 0; calls < CALLS && status == COLIBRI_AGAIN; calls++) {
        uint32_t flags = COLIBRI_TEXT_SPECIAL | COLIBRI_TEXT_BOS;
        status = colibri_tokenizer_encode(t, scratch, LIMIT, text, bytes, flags, BUDGET, ids, 2 * LIMIT, &count);
    }
    if (status == COLIBRI_AGAIN) {
        fprintf(stderr, "no end after %d calls\n", CALLS);
        exit(1);
    }
    memset(&stream, 0, sizeof stream);
    for (i = 0; i < 20; i++) {
        uint32_t id = status == COLIBRI_DONE && i < count ? ids[i] : i * 37;
        (void)colibri_tokenizer_decode(t, &stream, id, COLIBRI_TEXT_SPECIAL, out, room, &written);
    }
    (void)colibri_tokenizer_decode_end(&stream, out, room, &written);
    free(out);
    free(scratch);
    return status;
}

int main(int argc, char **argv)
{
    size_t bytes;
    size_t text_bytes;
    size_t i;
    unsigned long refused = 0;
    unsigned long failed = 0;
    unsigned long done = 0;
    colibri_tokenizer t;
    colibri_detail detail;
    if (argc != 3) {
        return 2;
    }
    unsigned char *section = read_file(argv[1], &bytes);
    unsigned char *text = read_file(argv[2], &text_bytes);
    for (i = 0; i < bytes; i++) {
        unsigned turn;
        unsigned turns = i < COLIBRI_TOKENIZER_HEADER_BYTES ? 8 : 2;
        for (turn = 0; turn < turns; turn++) {
            unsigned char was = section[i];
            unsigned char flip = (unsigned char)(1u << (turns == 8 ? turn : i % 8));
            section[i] = (unsigned char)(was ^ (turns == 2 && turn == 0 ? 0xFF : flip));
            if (colibri_tokenizer_bind(&t, section, bytes, &detail) != COLIBRI_OK) {
                refused++;
            } else if (use(&t, text, (uint32_t)text_bytes) == COLIBRI_DONE) {
                done++;
            } else {
                failed++;
            }
            section[i] = was;
        }
    }
    for (i = 0; i < bytes; i += i < 600 ? 1 : 97) {
        unsigned char *cut = malloc(i);
        memcpy(cut, section, i);
        if (colibri_tokenizer_bind(&t, cut, i, &detail) == COLIBRI_OK) {
            fprintf(stderr, "bound with %zu of %zu bytes\n", i, bytes);
            return 1;
        }
        free(cut);
    }
    printf("%zu bytes: %lu refused by bind, %lu by encode, %lu encoded to something\n", bytes, refused, failed,
           done);
    free(section);
    free(text);
    return 0;
}
