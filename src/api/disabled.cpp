// C entry points of optional parts that this build does not contain. They keep the ABI equal in all builds: each
// function fails with ISTHMUS_ERROR_UNSUPPORTED and names the CMake option that includes the part.
#include <isthmus/fused.h>
#include <isthmus/memory.h>
#include <isthmus/tools.h>

#include "base/error.hpp"
#include "memory/heap/symmetric_heap.hpp"

namespace isthmus {
namespace {

[[maybe_unused]] isthmus_status fail_disabled(const char* function, const char* part, const char* option) {
  return guard([&] {
    throw make_error(ISTHMUS_ERROR_UNSUPPORTED, ISTHMUS_HERE,
                     fmt::format("{}: this build of Isthmus has no {}", function, part),
                     fmt::format("build Isthmus with -D{}=ON, which is the default", option).c_str());
  });
}

}  // namespace
}  // namespace isthmus

#if !ISTHMUS_FUSED
namespace {

isthmus_status fail_fused(const char* function) {
  return isthmus::fail_disabled(function, "fused operators", "ISTHMUS_FUSED");
}

}  // namespace

isthmus_status isthmus_fused_plan_create(isthmus_communicator, const isthmus_fused_description*,
                                         isthmus_fused_plan* plan) {
  if (plan != nullptr) *plan = nullptr;
  return fail_fused("fused_plan_create");
}
isthmus_status isthmus_fused_run(isthmus_fused_plan, const isthmus_fused_arguments*) {
  return fail_fused("fused_run");
}
isthmus_status isthmus_fused_plan_info(isthmus_fused_plan, char*, size_t, size_t*) {
  return fail_fused("fused_plan_info");
}
isthmus_status isthmus_fused_plan_trace(isthmus_fused_plan, char*, size_t, size_t*) {
  return fail_fused("fused_plan_trace");
}
isthmus_status isthmus_fused_plan_destroy(isthmus_fused_plan plan) {
  return plan == nullptr ? ISTHMUS_SUCCESS : fail_fused("fused_plan_destroy");
}
#endif

#if !ISTHMUS_DEVICE_MEMORY
namespace {

isthmus_status fail_memory(const char* function) {
  return isthmus::fail_disabled(function, "allocator for device memory", "ISTHMUS_DEVICE_MEMORY");
}

}  // namespace

isthmus_status isthmus_memory_allocate_device(isthmus_device, uint64_t, const isthmus_memory_options*,
                                              void** pointer) {
  if (pointer != nullptr) *pointer = nullptr;
  return fail_memory("memory_allocate_device");
}
isthmus_status isthmus_memory_resize_device(isthmus_device, void**, uint64_t) {
  return fail_memory("memory_resize_device");
}
isthmus_status isthmus_memory_free_device(isthmus_device, void* pointer) {
  return pointer == nullptr ? ISTHMUS_SUCCESS : fail_memory("memory_free_device");
}
isthmus_status isthmus_memory_trim(isthmus_device) { return fail_memory("memory_trim"); }
isthmus_status isthmus_memory_query(const void*, isthmus_memory_info*) { return fail_memory("memory_query"); }
isthmus_status isthmus_memory_explain(isthmus_device, char*, size_t, size_t*) {
  return fail_memory("memory_explain");
}
isthmus_status isthmus_memory_register(isthmus_device, const isthmus_memory_provider*) {
  return fail_memory("memory_register");
}
uint64_t isthmus_memory_live_blocks(void) { return isthmus::symmetric_heap::live_blocks(); }
#endif
