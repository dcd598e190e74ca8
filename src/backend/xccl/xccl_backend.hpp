// The backend of NCCL and RCCL: one body; the traits give names, versions and places.
#pragma once

#include <isthmus/backend.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "session.hpp"

namespace isthmus::xccl {

template <typename Traits>
class backend {
 public:
  static const isthmus_backend* get() {
    static const isthmus_backend table = make();
    return &table;
  }

 private:
  using session_type = session<Traits>;
  using library = vendor_library<Traits>;
  using probe_record = typename session_type::probe_record;

  // The group that the calling thread has open.
  struct open_group {
    int depth = 0;
    std::vector<session_type*> members;
  };
  static open_group& group() {
    thread_local open_group open;
    return open;
  }
  // Groups that any thread has open: a call without one need not look at its thread's.
  static inline std::atomic<int> s_open_groups{0};

  static isthmus_backend make();
  static std::string examine(const isthmus_backend_context& context, library* native, probe_record& mine);
  static isthmus_status create(const isthmus_backend_context* context, void** state);
  static isthmus_status enqueue(void* state, const isthmus_operation* operations, const char* const*,
                                std::size_t n);
  static isthmus_status group_start();
  static isthmus_status group_end();
};

// What this rank brings. Returns why it cannot take part, or "".
template <typename Traits>
std::string backend<Traits>::examine(const isthmus_backend_context& context, library* native,
                                     probe_record& mine) {
  if (context.device.platform != Traits::platform)
    return std::string(Traits::title) + " needs a device of platform " + Traits::device_prefix;
  const device_runtime& device = native->device;
  const int ordinal = context.device.ordinal;
  int count = 0;
  if (const int error = device.get_device_count(&count); error != 0)
    return std::string("the ") + Traits::runtime_title + " finds no device: " + device.get_error_string(error);
  if (ordinal < 0 || ordinal >= count)
    return "device " + std::to_string(ordinal) + " does not exist; this machine has " + std::to_string(count);
  if (const int error = device.device_get_pci_bus_id(mine.device, sizeof(mine.device), ordinal); error != 0)
    return std::string("the device has no bus id: ") + device.get_error_string(error);
  if (Traits::capability_attribute >= 0)
    device.device_get_attribute(&mine.capability, Traits::capability_attribute, ordinal);
  mine.version = native->version;
  if (context.rank != 0) return {};
  const device_guard guard(device, ordinal);
  const int result = native->native.get_unique_id(mine.id);
  return result == native_success
             ? ""
             : std::string(Traits::symbol_prefix) + "GetUniqueId: " + Traits::meaning(result).name;
}

template <typename Traits>
isthmus_status backend<Traits>::create(const isthmus_backend_context* context, void** state) {
  *state = nullptr;
  probe_record mine;
  std::string reason;
  library* const native = library::get(*context, reason);
  if (native != nullptr) reason = examine(*context, native, mine);
  mine.usable = reason.empty() ? 1 : 0;
  put_text(mine.reason, sizeof(mine.reason), reason);
  std::vector<probe_record> all(static_cast<std::size_t>(context->size));
  if (const isthmus_status status = context->allgather(context->runtime, &mine, all.data(), sizeof(mine));
      status != ISTHMUS_SUCCESS)
    return status;
  if (const std::string why = disagreement(all, context->node_of); !why.empty())
    return context->fail(context->runtime, ISTHMUS_ERROR_UNSUPPORTED, 0, here().c_str(), Traits::install_hint,
                         "%s", why.c_str());

  auto made = std::make_unique<session_type>(*context, *native);
  const isthmus_status status = made->connect(all);
  const int code = status;
  std::vector<int> codes(static_cast<std::size_t>(context->size));
  isthmus_status exchanged = context->allgather(context->runtime, &code, codes.data(), sizeof(code));
  if (status == ISTHMUS_SUCCESS && exchanged == ISTHMUS_SUCCESS) {
    const auto broken =
        std::find_if(codes.begin(), codes.end(), [](int other) { return other != ISTHMUS_SUCCESS; });
    if (broken != codes.end())
      exchanged = context->fail(context->runtime, ISTHMUS_ERROR_REMOTE, *broken, here().c_str(),
                                "look at that rank's message", "rank %d could not join %s",
                                static_cast<int>(broken - codes.begin()), Traits::title);
  }
  const isthmus_status result = status != ISTHMUS_SUCCESS ? status : exchanged;
  if (result != ISTHMUS_SUCCESS) {
    made->release();
    return result;
  }
  context->log(context->runtime, 1, "%s %s from %s", Traits::title, native->text.c_str(), native->path.c_str());
  *state = made.release();
  return ISTHMUS_SUCCESS;
}

template <typename Traits>
isthmus_status backend<Traits>::enqueue(void* state, const isthmus_operation* operations, const char* const*,
                                        std::size_t n) {
  auto* const self = static_cast<session_type*>(state);
  const isthmus_status status = self->enqueue(operations, n);
  if (s_open_groups.load(std::memory_order_relaxed) == 0) {
    self->release_scratch();
    return status;
  }
  open_group& open = group();
  if (open.depth == 0)
    self->release_scratch();
  else if (std::find(open.members.begin(), open.members.end(), self) == open.members.end())
    open.members.push_back(self);
  return status;
}

template <typename Traits>
isthmus_status backend<Traits>::group_start() {
  library* const native = library::loaded();
  if (native == nullptr) return ISTHMUS_ERROR_INVALID_USAGE;
  const int result = native->native.group_start();
  if (result != native_success) return Traits::meaning(result).status;
  s_open_groups.fetch_add(1, std::memory_order_relaxed);
  ++group().depth;
  return ISTHMUS_SUCCESS;
}

template <typename Traits>
isthmus_status backend<Traits>::group_end() {
  open_group& open = group();
  if (open.depth == 0) return ISTHMUS_ERROR_INVALID_USAGE;
  const int result = library::loaded()->native.group_end();
  s_open_groups.fetch_sub(1, std::memory_order_relaxed);
  if (--open.depth > 0) return result == native_success ? ISTHMUS_SUCCESS : Traits::meaning(result).status;
  isthmus_status status = ISTHMUS_SUCCESS;
  for (session_type* member : std::exchange(open.members, {})) {
    const isthmus_status mine = member->finish_group(result);
    if (status == ISTHMUS_SUCCESS) status = mine;
  }
  return status;
}

template <typename Traits>
isthmus_backend backend<Traits>::make() {
  isthmus_backend table{};
  table.struct_bytes = sizeof(table);
  table.magic = ISTHMUS_BACKEND_MAGIC;
  table.abi_version = ISTHMUS_BACKEND_ABI;
  table.name = Traits::name;
  table.description = Traits::description;
  table.capabilities = ISTHMUS_BACKEND_GRAPH_CAPTURE | ISTHMUS_BACKEND_MULTI_NODE;
  table.platforms = 1u << Traits::platform;
  table.create = create;
  table.destroy = [](void* state) {
    const std::unique_ptr<session_type> owned(static_cast<session_type*>(state));
    owned->release();
  };
  table.supports = [](void* state, const isthmus_operation* operation, const char* algorithm) {
    return static_cast<session_type*>(state)->supports(*operation, algorithm);
  };
  table.enqueue = enqueue;
  table.group_start = group_start;
  table.group_end = group_end;
  table.poll = [](void* state) { return static_cast<session_type*>(state)->poll(); };
  table.abort = [](void* state) { static_cast<session_type*>(state)->abort(); };
  table.synchronize = [](void* state) { return static_cast<session_type*>(state)->synchronize(); };
  table.version = [](void* state) { return static_cast<session_type*>(state)->version(); };
  return table;
}

}  // namespace isthmus::xccl
