/*
 * x86_headers.h: the compilers' intrinsics, included before any target region. gcc's header also wants an allocator
 * from stdlib.h, which a freestanding build does not have: its guard keeps it out.
 */
#ifndef COLIBRI_X86_HEADERS_H
#define COLIBRI_X86_HEADERS_H

#if !defined(__clang__) && !defined(_MM_MALLOC_H_INCLUDED)
#define _MM_MALLOC_H_INCLUDED 1
#endif
#include <immintrin.h>

#endif
