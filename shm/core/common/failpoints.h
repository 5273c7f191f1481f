/* failpoints.h - named places between the steps of a change that other processes can see. A test can kill or stop the
 * process there.
 *
 * Failpoints compile to nothing in a release. A build with PT_POINTS defined finds pt_crossed in a library that
 * is preloaded (tests/crash/injection). Each failpoint stands on a line of its own, so that the core without
 * these lines is the core that is released. */
#pragma once

#ifdef PT_POINTS
void pt_crossed(const char *name);
#define PT_POINT(name) pt_crossed(name)
#else
#define PT_POINT(name) ((void)0)
#endif
