// Settings of the tests, and the calls that the stand-in recorded.
#pragma once

namespace standin {

// Records a native call. Returns the failure code that a test requested for it, or 0.
int record_call(const char* function);
int reported_version();
bool init_hangs();
bool abort_hangs();
void count_communicators(int change);

}  // namespace standin
