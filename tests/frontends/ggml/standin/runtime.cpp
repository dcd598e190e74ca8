#include "runtime.hpp"

namespace {

struct stream {
  int ordinal;
};
int records = 0;

}  // namespace

namespace standin {
void* make_stream(int ordinal) { return new stream{ordinal}; }
int count_of_records() { return records; }
}  // namespace standin

extern "C" int cudaEventRecord(void*, void*) {
  ++records;
  return 0;
}
