// Runs ranks on real devices or on the stand-in driver, in threads or in separate processes.
#pragma once

#include <isthmus/isthmus.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "conformance/rank_buffers.hpp"
#include "device/driver.hpp"
#include "topology/topology.hpp"

namespace copy_engine_test {

constexpr std::uint64_t room_bytes = 8u << 20;  // size of each buffer of a rank_device

// A rank's device and its buffers. They are filled and read through pinned memory.
class rank_device {
 public:
  rank_device(isthmus::device_driver& driver, isthmus_platform platform, int device);
  ~rank_device();
  rank_device(const rank_device&) = delete;
  rank_device& operator=(const rank_device&) = delete;

  isthmus::device_driver& driver() { return m_driver; }
  isthmus_device device_name() const { return {m_platform, m_device}; }
  int device() const { return m_device; }
  isthmus::native_stream stream() const { return m_stream; }
  void use_stream(isthmus::native_stream stream) { m_stream = stream; }
  isthmus::native_stream own_stream() const { return m_own_stream; }
  void synchronize() { m_driver.synchronize(m_device, m_stream); }

  std::byte* plain() const { return m_plain; }
  std::span<std::byte> mirror() const { return {m_mirror, room_bytes}; }
  // Stream-ordered copies between a range of the mirror and a device buffer.
  void upload(std::byte* to, std::span<const std::byte> range);
  void download(std::span<std::byte> range, const std::byte* from);

 private:
  isthmus::device_driver& m_driver;
  isthmus_platform m_platform;
  int m_device;
  isthmus::native_stream m_own_stream, m_stream;
  std::byte* m_plain;
  std::byte* m_mirror;
};

// One call of a test: its layout in the mirror and its buffers on the device.
struct device_call {
  device_call(const conformance::test_case& test, int rank, int size, std::span<std::byte> mirror,
              std::byte* on_device);
  std::span<std::byte> mirror;
  std::byte* on_device;
  conformance::rank_buffers buffers;
  oracle::operation_shape shape;  // the operation points into it
  isthmus_operation operation;
};

// A communicator on a rank_device. `use`: the backend[:algorithm] of its only rule, or nullptr for
// the default rules.
class member {
 public:
  member(rank_device& device, const isthmus_unique_id& id, int rank, int size, const char* use,
         double timeout_s);
  member(rank_device& device, isthmus_communicator handle, const char* use = "copy_engine");
  ~member();
  member(const member&) = delete;
  member& operator=(const member&) = delete;

  rank_device& device() { return m_device; }
  isthmus_communicator handle() const { return m_handle; }
  int rank() const { return m_rank; }
  int size() const { return m_size; }
  std::byte* heap();  // room_bytes; the first call is collective
  // The selected path such as "copy_engine:staged", or why no backend takes the call.
  std::string selected_path(const isthmus_operation& operation);
  // True if the backend of `use` takes the call.
  bool takes(const isthmus_operation& operation) { return selected_path(operation).starts_with(m_backend); }
  // Enqueues a call on the stream; for a send: a ring of sends and receives.
  isthmus_status enqueue(const conformance::test_case& test, const isthmus_operation& operation);
  // Runs and checks one call, if the backend takes it. Returns the error, if any.
  std::optional<std::string> run_case(const conformance::test_case& test);

 private:
  rank_device& m_device;
  std::string m_backend;  // without the algorithm
  isthmus_communicator m_handle = nullptr;
  int m_rank = 0, m_size = 0;
  std::byte* m_heap = nullptr;
};

std::string last_error();

using ::topology::rendezvous;

// Counts the devices in a separate process, because a driver cannot be used after a fork.
int count_devices(isthmus_platform platform);

// Runs `body` on `size` ranks with one device each, and returns the sum of the results. Processes are created
// with fork, so no driver may have been used before.
using rank_body = std::function<int(rank_device& device, rendezvous& all, int rank, int size)>;
int run(isthmus_platform platform, bool in_processes, int size, const rank_body& body);

}  // namespace copy_engine_test
