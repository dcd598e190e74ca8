// C entry points of memory.h for copies.
#include "memory/copy/copy.hpp"

#include <isthmus/memory.h>

#include "base/arguments.hpp"

namespace isthmus {
namespace {

void check_platform(const char* argument, isthmus_device device) {
  if (device.platform < 0 || device.platform >= ISTHMUS_PLATFORM_COUNT)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("memory_copy: {}.platform = {} must be in [0, {})", argument,
                                 static_cast<int>(device.platform), static_cast<int>(ISTHMUS_PLATFORM_COUNT)),
                     "use an ISTHMUS_PLATFORM_ value of isthmus/types.h");
}

void add_options(copy_request& request, const isthmus_copy_options& options) {
  if (options.struct_bytes != sizeof options)
    throw make_error(
        ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
        fmt::format("memory_copy: options->struct_bytes = {} must be {}", options.struct_bytes, sizeof options),
        "zero-initialize the options and set struct_bytes = sizeof(isthmus_copy_options)");
  if (options.path < ISTHMUS_COPY_AUTO || options.path > ISTHMUS_COPY_STAGED)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("memory_copy: options->path = {} must be 0 (auto), 1 (direct) or 2 (staged)",
                                 static_cast<int>(options.path)));
  if (options.wait_count > 0 && options.wait_events == nullptr)
    throw make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                     fmt::format("memory_copy: options->wait_events is NULL, but options->wait_count = {}",
                                 options.wait_count));
  request.path = options.path;
  request.push = options.push != 0;
  request.wait_events = {options.wait_events, options.wait_count};
  request.done_event = options.done_event;
}

}  // namespace
}  // namespace isthmus

isthmus_status isthmus_memory_copy(void* destination, isthmus_device destination_device, const void* source,
                                   isthmus_device source_device, uint64_t bytes,
                                   const isthmus_copy_options* options, isthmus_stream stream) {
  return isthmus::guard([&] {
    isthmus::check_platform("destination_device", destination_device);
    isthmus::check_platform("source_device", source_device);
    isthmus::copy_request request{.destination = destination,
                                  .destination_device = destination_device,
                                  .source = source,
                                  .source_device = source_device,
                                  .bytes = bytes,
                                  .wait_events = {},
                                  .stream = stream};
    if (options != nullptr) isthmus::add_options(request, *options);
    isthmus::copy_memory(request);
  });
}
