/* failpoints.h - named points between the steps of a change that other processes can see: where a test ends or stops a process.
 *
 * They are nothing in a release. A build with PT_POINTS defined links a pt_crossed of its own (tests/crash/kill_points).
 * Each stands on a line of its own, so that the core without these lines is the core that is released. */
#pragma once

#ifdef PT_POINTS
void pt_crossed(const char *name);
#define PT_POINT(name) pt_crossed(name)
#else
#define PT_POINT(name) ((void)0)
#endif
