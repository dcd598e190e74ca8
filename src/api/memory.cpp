// C entry points of memory.h for the symmetric heap and for copies.
#include <isthmus/memory.h>

#include "base/error.hpp"
#include "core/communicator.hpp"
#include "core/group.hpp"
#include "core/handles.hpp"
#include "memory/copy/copy.hpp"

namespace isthmus {
namespace {

void check_platform(const char* argument, isthmus_device device) {
  if (device.platform < 0 || device.platform >= ISTHMUS_PLATFORM_COUNT)
    throw out_of_range(ISTHMUS_HERE, fmt::format("memory_copy: {}.platform", argument),
                       static_cast<int>(device.platform), ISTHMUS_PLATFORM_COUNT,
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

isthmus_status isthmus_memory_allocate_symmetric(isthmus_communicator communicator, uint64_t bytes,
                                                 void** pointer) {
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, "memory_allocate_symmetric", "pointer", pointer,
                              "pass the address of the variable that receives the block");
    *pointer = nullptr;
    isthmus::group::reject_active("memory_allocate_symmetric");
    *pointer = isthmus::handle_table::instance().find(communicator).allocate_symmetric(bytes);
  });
}

isthmus_status isthmus_memory_peer(isthmus_communicator communicator, const void* pointer, int rank,
                                   void** peer) {
  return isthmus::guard([&] {
    isthmus::require_not_null(ISTHMUS_HERE, "memory_peer", "peer", peer,
                              "pass the address of the variable that receives the pointer");
    *peer = nullptr;
    isthmus::communicator& owner = isthmus::handle_table::instance().find(communicator);
    if (rank < 0 || rank >= owner.ranks().size)
      throw isthmus::invalid_argument(
          ISTHMUS_HERE, fmt::format("memory_peer: rank = {} must be in [0, {})", rank, owner.ranks().size),
          "pass the rank of this communicator whose block you want to access");
    isthmus_heap_block block{};
    std::uint64_t offset = 0;
    if (!owner.heap().find(pointer, 1, &block, &offset))
      throw isthmus::invalid_argument(
          ISTHMUS_HERE,
          fmt::format(
              "memory_peer: pointer = {} must lie in a live block of this communicator's symmetric heap",
              pointer),
          "allocate it with isthmus_memory_allocate_symmetric");
    void* const base = block.peers[rank];
    *peer = base == nullptr ? nullptr : static_cast<std::byte*>(base) + offset;
  });
}

isthmus_status isthmus_memory_free_symmetric(isthmus_communicator communicator, void* pointer) {
  return isthmus::guard([&] {
    isthmus::communicator& owner = isthmus::handle_table::instance().find(communicator);
    if (pointer != nullptr) owner.free_symmetric(pointer);
  });
}

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
