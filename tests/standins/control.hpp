// What tests set, and what the stand-in recorded.
#pragma once

namespace standin {

// Records a native call. Returns the code that a test wants it to fail with, or 0.
int record_call(const char* function);
int reported_version();
bool init_hangs();
void count_communicators(int change);

}  // namespace standin
