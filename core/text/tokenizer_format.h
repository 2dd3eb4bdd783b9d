/*
 * tokenizer_format.h: the layout of the tokenizer section, declared once. Python reads this header with
 * cffi, so it holds nothing but fixed-width structures and integer constants.
 *
 *   header | tables, each at a multiple of 4 from the section's first byte
 *
 * A table is (offset from the section's first byte, number of elements). Everything is little-endian. bind()
 * checks the header and that every table lies inside the section; what stands in a table is untrusted and
 * checked whenever it is used. What this reader cannot run (an unknown kind or step) it refuses by status.
 */
#ifndef COLIBRI_TOKENIZER_FORMAT_H
#define COLIBRI_TOKENIZER_FORMAT_H

#include <stdint.h>

enum colibri_tokenizer_constants {
    COLIBRI_TOKENIZER_MAGIC = 0x4B4F5443,       /* "CTOK" */
    COLIBRI_TOKENIZER_VERSION = 1,
    COLIBRI_TOKENIZER_HEADER_BYTES = 400,
    COLIBRI_TOKENIZER_STEPS = 8,                /* pre-tokenizer steps; each splits what the last made */
    COLIBRI_TOKENIZER_AFFIXES = 4,              /* ids put before or behind a text */
    COLIBRI_TOKENIZER_VOCAB_LIMIT = 0x10000000, /* ids stay below, so that scratch words have bits to spare */
    COLIBRI_TOKENIZER_TEXT_LIMIT = 1024,        /* longest text of an id or an added token, bytes */
    COLIBRI_TOKENIZER_NONE = -1                 /* 0xFFFFFFFF in the file: no such id */
};

enum colibri_tokenizer_kind {
    COLIBRI_TOKENIZER_BYTE_BPE = 1,             /* symbols are bytes */
    COLIBRI_TOKENIZER_CHAR_BPE = 2              /* symbols are characters, unknown ones may become bytes */
};

enum colibri_tokenizer_flags {
    COLIBRI_TOKENIZER_PREFIX_SPACE = 1,         /* a segment that does not begin with a space gets one */
    COLIBRI_TOKENIZER_IGNORE_MERGES = 2,        /* a piece that is a token as a whole is taken whole */
    COLIBRI_TOKENIZER_BYTE_FALLBACK = 4,        /* CHAR_BPE: byte_ids stand in for an unknown character */
    COLIBRI_TOKENIZER_FUSE_UNKNOWN = 8,         /* neighbouring unknown symbols give one unk */
    COLIBRI_TOKENIZER_NFC = 16,                 /* text between raw added tokens is brought into NFC */
    COLIBRI_TOKENIZER_SPACE_MARK = 32,          /* a space reads as U+2581 */
    COLIBRI_TOKENIZER_PREFIX_MARK = 64,         /* a segment gets U+2581 in front, always */
    COLIBRI_TOKENIZER_STRIP_SPACE = 128,        /* decoding drops one space at the very beginning */
    COLIBRI_TOKENIZER_FLAGS_KNOWN = 255
};

/* Pre-tokenizer steps. The regular expressions are those of the families named; classes as in the library. */
enum colibri_tokenizer_step_id {
    COLIBRI_STEP_END = 0,
    COLIBRI_STEP_DIGITS = 1,                    /* numeric characters: argument 1 one by one, 0 as runs */
    COLIBRI_STEP_GPT2 = 2,                      /* ByteLevel's own expression */
    COLIBRI_STEP_CL100K = 3,                    /* Llama 3 (argument 3) and Qwen (1): digits per piece */
    COLIBRI_STEP_O200K = 4,                     /* words split where case changes */
    COLIBRI_STEP_NUMBERS = 5,                   /* \p{N}{1,argument} apart */
    COLIBRI_STEP_CJK = 6,                       /* runs of CJK and kana apart, as DeepSeek does */
    COLIBRI_STEP_DEEPSEEK = 7,                  /* DeepSeek's words; what they do not match stays whole */
    COLIBRI_STEP_SPACE_ENDS = 8                 /* a space ends its piece */
};

/* Classes of a character, as bits. Letters, marks, numbers, punctuation, symbols and SPACE are those of the
 * expressions' engine; the others those of the library's own character tests. */
enum colibri_tokenizer_class {
    COLIBRI_CLASS_UPPER = 1,                    /* Lu, Lt */
    COLIBRI_CLASS_LOWER = 2,                    /* Ll */
    COLIBRI_CLASS_OTHER_LETTER = 4,             /* Lm, Lo */
    COLIBRI_CLASS_LETTER = 7,
    COLIBRI_CLASS_MARK = 8,                     /* M */
    COLIBRI_CLASS_NUMBER = 16,                  /* N */
    COLIBRI_CLASS_PUNCTUATION = 32,             /* P */
    COLIBRI_CLASS_SYMBOL = 64,                  /* S */
    COLIBRI_CLASS_SPACE = 128,                  /* \s */
    COLIBRI_CLASS_NUMERIC = 256,                /* what the Digits step takes for a digit */
    COLIBRI_CLASS_STRIP = 512,                  /* white space that lstrip and rstrip swallow */
    COLIBRI_CLASS_WORD = 1024                   /* word character for single_word */
};

enum colibri_tokenizer_added_flags {
    COLIBRI_ADDED_SPECIAL = 1,
    COLIBRI_ADDED_NORMALIZED = 2,               /* looked for after normalization, in what is left */
    COLIBRI_ADDED_LSTRIP = 4,
    COLIBRI_ADDED_RSTRIP = 8,
    COLIBRI_ADDED_SINGLE_WORD = 16
};

/* An entry of text_first is the offset of an id's bytes in `texts`; the top bit marks a special token. */
enum colibri_tokenizer_text_bits {
    COLIBRI_TEXT_FIRST_MASK = 0x3FFFFFFF,
    COLIBRI_TEXT_FIRST_SPECIAL = 0x40000000
};

typedef struct colibri_tokenizer_table {
    uint32_t offset;
    uint32_t count;
} colibri_tokenizer_table;

typedef struct colibri_tokenizer_step {
    uint32_t id;
    uint32_t argument;
} colibri_tokenizer_step;

typedef struct colibri_tokenizer_merge {        /* sorted by right within one left */
    uint32_t right;
    uint32_t rank;
    uint32_t result;
} colibri_tokenizer_merge;

typedef struct colibri_tokenizer_char {         /* sorted by code */
    uint32_t code;
    uint32_t id;
} colibri_tokenizer_char;

typedef struct colibri_tokenizer_added {        /* raw ones first, then normalized; both sorted by bytes */
    uint32_t id;
    uint32_t flags;
    uint32_t first;                             /* offset in added_texts */
    uint32_t bytes;
} colibri_tokenizer_added;

typedef struct colibri_tokenizer_compose {      /* sorted by first, second; canonical pairs */
    uint32_t first;
    uint32_t second;
    uint32_t whole;
} colibri_tokenizer_compose;

typedef struct colibri_tokenizer_span {         /* sorted by code; full canonical decomposition */
    uint32_t code;
    uint32_t first;                             /* index in decomposed */
    uint32_t count;
} colibri_tokenizer_span;

typedef struct colibri_tokenizer_header {
    uint32_t magic;
    uint32_t version;
    uint32_t header_bytes;
    uint32_t bytes;                             /* the section's, padding to the next section not counted */
    uint32_t kind;
    uint32_t flags;
    uint32_t vocab;                             /* ids, gaps included */
    uint32_t longest;                           /* bytes of the longest text of an id */
    uint32_t bos;
    uint32_t eos;
    uint32_t unk;
    uint32_t pad;
    uint32_t prefix_count;
    uint32_t suffix_count;
    uint32_t prefix[4];                         /* ids the checkpoint puts before a text (bos) */
    uint32_t suffix[4];                         /* ids it puts behind (eos) */
    colibri_tokenizer_step steps[8];            /* ends with COLIBRI_STEP_END unless all are used */
    colibri_tokenizer_table text_first;         /* uint32, vocab + 1 */
    colibri_tokenizer_table texts;              /* bytes: what an id decodes to */
    colibri_tokenizer_table byte_ids;           /* uint32, 256: id of a single byte, or NONE */
    colibri_tokenizer_table merge_first;        /* uint32, vocab + 1: a left id's range in merges */
    colibri_tokenizer_table merges;             /* colibri_tokenizer_merge */
    colibri_tokenizer_table whole;              /* uint32: ids sorted by their texts, for IGNORE_MERGES */
    colibri_tokenizer_table chars;              /* colibri_tokenizer_char, for CHAR_BPE */
    colibri_tokenizer_table added;              /* colibri_tokenizer_added */
    colibri_tokenizer_table added_texts;        /* bytes */
    colibri_tokenizer_table class_top;          /* uint16, code >> 7: which leaf */
    colibri_tokenizer_table class_leaves;       /* bytes, 128 a leaf: which mask */
    colibri_tokenizer_table class_masks;        /* uint32, at most 256 */
    colibri_tokenizer_table combining_top;      /* uint16, code >> 7: which leaf */
    colibri_tokenizer_table combining_leaves;   /* bytes, 128 a leaf: rank of the class (0 = starter), */
                                                /*   plus 128 where the NFC quick check says no or maybe */
    colibri_tokenizer_table decompositions;     /* colibri_tokenizer_span */
    colibri_tokenizer_table decomposed;         /* uint32 */
    colibri_tokenizer_table compositions;       /* colibri_tokenizer_compose */
    colibri_tokenizer_table markers;            /* bytes: role markers, see below */
    uint32_t added_raw;                         /* how many of `added` are looked for in raw text */
    uint32_t added_flags;                       /* all flags of `added` together */
    uint32_t added_longest;                     /* bytes of the longest content */
    uint32_t marker_bytes[7];                   /* lengths of the role markers, behind each other */
    uint32_t added_start[2][8];                 /* bit b of set s: some content begins with byte b */
} colibri_tokenizer_header;

/* The plain form of a chat: for each message before + text + after, then the assistant's before; BEGIN
 * stands in front unless the first message is the system's. Where the checkpoint's chat template is of this
 * form, firmware can build a prompt without a template engine; else all markers are empty. */
enum colibri_tokenizer_marker {
    COLIBRI_MARKER_BEGIN = 0,
    COLIBRI_MARKER_SYSTEM_BEFORE = 1,
    COLIBRI_MARKER_SYSTEM_AFTER = 2,
    COLIBRI_MARKER_USER_BEFORE = 3,
    COLIBRI_MARKER_USER_AFTER = 4,
    COLIBRI_MARKER_ASSISTANT_BEFORE = 5,
    COLIBRI_MARKER_ASSISTANT_AFTER = 6,
    COLIBRI_MARKER_COUNT = 7
};

#endif
