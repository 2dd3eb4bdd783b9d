/*
 * stop.h: ending a text at one of several strings, wherever token borders fall. Owns the bytes held back
 * because they may begin a stop string; knows neither tokens nor sessions.
 *
 * The string whose last byte comes first ends the text (of several that end there, the longest), and the
 * text is cut before it. The result does not depend on how the bytes were cut into calls.
 */
#ifndef COLIBRI_STOP_H
#define COLIBRI_STOP_H

#include "colibri.h"

#endif
