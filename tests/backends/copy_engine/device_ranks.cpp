#include "device_ranks.hpp"

#include <isthmus/memory.h>
#include <isthmus/tools.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "conformance/issue.hpp"

namespace copy_engine_test {

using isthmus::device_copy;
using isthmus::device_driver;
using isthmus::stream_priority;

// ---- rank_device --------------------------------------------------------------------------------------

rank_device::rank_device(device_driver& driver, isthmus_platform platform, int device)
    : m_driver(driver),
      m_platform(platform),
      m_device(device),
      m_own_stream(driver.create_stream(device, stream_priority::normal)),
      m_stream(m_own_stream),
      m_plain(static_cast<std::byte*>(driver.allocate(device, room_bytes))),
      m_mirror(static_cast<std::byte*>(driver.allocate_host(room_bytes))) {}

rank_device::~rank_device() {
  m_driver.free_host(m_mirror);
  m_driver.free(m_device, m_plain);
  m_driver.destroy_stream(m_device, m_own_stream);
}

void rank_device::upload(std::byte* to, std::span<const std::byte> range) {
  const device_copy request{to, range.data(), range.size()};
  m_driver.copy(m_device, {&request, 1}, m_stream);
}

void rank_device::download(std::span<std::byte> range, const std::byte* from) {
  const device_copy request{range.data(), from, range.size()};
  m_driver.copy(m_device, {&request, 1}, m_stream);
}

device_call::device_call(const conformance::test_case& test, int rank, int size, std::span<std::byte> storage,
                         std::byte* device_memory)
    : mirror(storage.first(conformance::rank_buffers::required_bytes(test, conformance::shape_of(test, size)))),
      on_device(device_memory),
      buffers(test, conformance::shape_of(test, size), rank, mirror),
      shape(conformance::shape_of(test, size)),
      operation(conformance::operation_of(test, shape, buffers.addresses(), rank)) {
  const auto to_device = [&](const void* host_pointer) -> std::byte* {
    return host_pointer == nullptr ? nullptr
                                   : on_device + (static_cast<const std::byte*>(host_pointer) - mirror.data());
  };
  operation.send_buf = to_device(operation.send_buf);
  operation.recv_buf = to_device(operation.recv_buf);
}

// ---- members ------------------------------------------------------------------------------------------

std::string last_error() {
  isthmus_error_info info{};
  isthmus_last_error(&info);
  return std::string(isthmus_status_name(info.status)) + ": " + info.message + " [" + info.location + "; " +
         info.hint + "]";
}

namespace {
std::string backend_of(const char* use) {
  const std::string path = use == nullptr ? "copy_engine" : use;
  return path.substr(0, path.find(':'));
}
}  // namespace

member::member(rank_device& device, const isthmus_unique_id& id, int rank, int size, const char* use,
               double timeout_s)
    : m_device(device), m_backend(backend_of(use)), m_rank(rank), m_size(size) {
  char path[] = "/tmp/isthmus-copy-engine-XXXXXX";
  const int file = mkstemp(path);
  if (file < 0) throw std::runtime_error("mkstemp failed");
  close(file);
  std::ofstream config(path);
  if (use != nullptr) config << "[[rule]]\nuse = \"" << use << "\"\n";
  // Small staging areas, so that messages need several chunks; sizes on both sides of each threshold; lockstep
  // for the staged algorithm.
  const bool in_step = use != nullptr && std::string(use) == "copy_engine:staged";
  config << "[backend.copy_engine]\nstaging_bytes = 262144\nbatch_bytes = 4096\nstreams = 2\nwait_all_bytes = "
         << (in_step ? 1u << 30 : 8192u) << "\nshare_device = true\n"  // there may be fewer devices than ranks
         << "[backend.p2p]\nshare_device = true\n";
  config.close();
  isthmus_communicator_options options{};
  options.struct_bytes = sizeof options;
  options.device = device.device_name();
  options.config_path = path;
  options.timeout_s = timeout_s;
  const isthmus_status status = isthmus_communicator_create(&id, rank, size, &options, &m_handle);
  std::remove(path);
  if (status != ISTHMUS_SUCCESS) throw std::runtime_error("create: " + last_error());
}

member::member(rank_device& device, isthmus_communicator handle, const char* use)
    : m_device(device), m_backend(backend_of(use)), m_handle(handle) {
  isthmus_communicator_rank(handle, &m_rank);
  isthmus_communicator_size(handle, &m_size);
}

member::~member() {
  if (m_heap != nullptr) isthmus_memory_free_symmetric(m_handle, m_heap);
  if (isthmus_communicator_destroy(m_handle) != ISTHMUS_SUCCESS)
    std::printf("note: destroy: %s\n", last_error().c_str());
}

std::byte* member::heap() {
  void* block = m_heap;
  if (block == nullptr && isthmus_memory_allocate_symmetric(m_handle, room_bytes, &block) != ISTHMUS_SUCCESS)
    throw std::runtime_error("symmetric heap: " + last_error());
  return m_heap = static_cast<std::byte*>(block);
}

std::string member::selected_path(const isthmus_operation& operation) {
  std::string text(1 << 16, '\0');
  if (isthmus_communicator_explain(m_handle, &operation, text.data(), text.size(), nullptr) != ISTHMUS_SUCCESS)
    return last_error();
  const auto answer = nlohmann::json::parse(text.c_str());
  if (answer.at("backend").is_null()) return answer.dump();
  const std::string algorithm = answer.at("algorithm");
  return answer.at("backend").get<std::string>() + (algorithm.empty() ? "" : ":" + algorithm);
}

isthmus_status member::enqueue(const conformance::test_case& test, const isthmus_operation& operation) {
  if (test.collective != ISTHMUS_SEND) return isthmus_enqueue(m_handle, &operation);
  isthmus_operation send = operation, recv = operation;
  send.recv_buf = nullptr;
  send.root = (m_rank + operation.root) % m_size;
  recv.send_buf = nullptr;
  recv.collective = ISTHMUS_RECV;
  recv.root = (m_rank + m_size - operation.root) % m_size;
  isthmus_group_start();
  isthmus_status status = isthmus_enqueue(m_handle, &send);
  if (status == ISTHMUS_SUCCESS) status = isthmus_enqueue(m_handle, &recv);
  const isthmus_status end_status = isthmus_group_end();
  return status == ISTHMUS_SUCCESS ? end_status : status;
}

std::optional<std::string> member::run_case(const conformance::test_case& test) {
  device_call call(test, m_rank, m_size, m_device.mirror(), test.heap ? heap() : m_device.plain());
  call.operation.stream = m_device.stream();
  if (!takes(call.operation)) return std::nullopt;  // unsupported by this algorithm
  m_device.upload(call.on_device, call.mirror);
  if (enqueue(test, call.operation) != ISTHMUS_SUCCESS) return last_error();
  m_device.download(call.mirror, call.on_device);
  m_device.synchronize();
  return call.buffers.find_error(true, true, false);
}

// ---- running ranks ------------------------------------------------------------------------------------

namespace {

int run_rank(isthmus_platform platform, const rank_body& body, rendezvous& all, int rank, int size) {
  try {
    std::string reason;
    device_driver* driver = device_driver::get(platform, reason);
    if (driver == nullptr) throw std::runtime_error(reason);
    if (driver->device_count() == 0) throw std::runtime_error("no device");
    rank_device device(*driver, platform, rank % driver->device_count());
    return body(device, all, rank, size);
  } catch (const std::exception& failure) {
    std::printf("FAIL rank %d: %s\n", rank, failure.what());
    std::fflush(stdout);
    std::_Exit(1);  // the other ranks wait for this one
  }
}

}  // namespace

int count_devices(isthmus_platform platform) {
  const pid_t child = fork();
  if (child == 0) {
    std::string reason;
    isthmus::device_driver* driver = isthmus::device_driver::get(platform, reason);
    if (driver == nullptr) std::printf("%s\n", reason.c_str());
    std::fflush(stdout);
    std::_Exit(driver == nullptr ? 0 : driver->device_count());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

int run(isthmus_platform platform, bool in_processes, int size, const rank_body& body) {
  rendezvous& all = rendezvous::create(size);
  std::atomic<int> failures{0};
  if (!in_processes) {
    topology::run_on_each_rank(size, [&](int rank) { failures += run_rank(platform, body, all, rank, size); });
    return failures;
  }
  topology::child_processes children;
  for (int rank = 0; rank < size; ++rank)
    children.start(rank, [&] { return run_rank(platform, body, all, rank, size); });
  for (const auto& child : children.join()) failures += child.failures();
  return failures;
}

}  // namespace copy_engine_test
