/* Lets a Python program, by ctypes, say to callgrind when to count and where to cut. Does nothing outside
 * of valgrind. */
#include <valgrind/callgrind.h>

void start_counting(void)
{
    CALLGRIND_START_INSTRUMENTATION;
}

/* All that was counted until now does not matter. */
void forget(void)
{
    CALLGRIND_ZERO_STATS;
}

/* All that was counted since goes to a file of its own, with this as its trigger. */
void cut(const char *name)
{
    CALLGRIND_DUMP_STATS_AT(name);
}
