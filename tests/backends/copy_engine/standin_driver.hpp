// A driver whose devices are host memory and threads. It implements only what the copy engine backend needs:
// streams, events, words and captures. On request, it delays commands at random and maps all streams of a
// device to one queue, as real drivers may do.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "device/driver.hpp"
#include "device/kernel_compiler.hpp"

namespace copy_engine_test {

struct driver_behavior {
  bool one_queue = false;  // shared by all normal-priority streams of a device
  int delay_us = 0;        // maximum of the random delay before each command
  std::uint64_t seed = 1;
};

class standin_compiler final : public isthmus::kernel_compiler {
 public:
  std::atomic<int> compiled{0};

 private:
  std::string compile(isthmus::device_driver& driver, int device,
                      const isthmus::kernel_source& source) override;
};

class standin_driver final : public isthmus::device_driver {
 public:
  using command = std::function<void(const std::atomic<bool>& stop)>;
  using graph = std::vector<command>;

  standin_driver(int devices, driver_behavior behavior);
  ~standin_driver() override;

  // ---- for tests --------------------------------------------------------------------------------------
  void begin_capture(isthmus::native_stream stream);
  graph end_capture();
  // Executes the captured commands in issue order, on one stream.
  void launch(const graph& captured, isthmus::native_stream stream);
  void run_on(isthmus::native_stream stream, command work);
  // The next `calls` calls succeed; the one after them throws.
  void fail_after(int calls) { m_calls_left = calls; }
  // Called before and after the copies of each command, on the queue's thread. Set it before the first command.
  std::function<void(std::size_t copies, bool ended)> on_copies;
  // Number of copies and commands that were issued.
  int copies() const { return m_copies; }
  int commands() const { return m_commands; }

  // ---- the driver -------------------------------------------------------------------------------------
  std::string version() override { return "threads and host memory"; }
  int device_count() override { return m_devices; }
  void* allocate_host(std::uint64_t bytes) override;
  void free_host(void* pointer) override;
  void register_host(void*, std::uint64_t) override {}
  isthmus::native_stream create_stream(int device, isthmus::stream_priority priority) override;
  void destroy_stream(int device, isthmus::native_stream stream) override;
  void synchronize(int device, isthmus::native_stream stream) override;
  bool is_capturing(int device, isthmus::native_stream stream) override;
  isthmus::native_event create_event(int device) override;
  void destroy_event(isthmus::native_event event) override;
  void record(int device, isthmus::native_event event, isthmus::native_stream stream) override;
  void wait(int device, isthmus::native_stream stream, isthmus::native_event event) override;
  bool is_done(isthmus::native_event event) override;
  void copy(int device, std::span<const isthmus::device_copy> copies, isthmus::native_stream stream) override;
  void enqueue_words(int device, std::span<const isthmus::word_step> steps,
                     isthmus::native_stream stream) override;
  // `code`: the output of standin_compiler, which is datatype and operation.
  isthmus::native_kernel load_kernel(int device, const std::string& code, const char* entry) override;
  void launch(int device, isthmus::native_kernel kernel, unsigned blocks, unsigned threads,
              std::span<void*> arguments, isthmus::native_stream stream) override;

  // ---- functions that the copy engine backend must not call ----------------------------------------------
  std::string name(int) override { fail_unexpected_call(); }
  std::string bus_id(int) override { fail_unexpected_call(); }
  isthmus::device_memory_info memory_info(int) override { fail_unexpected_call(); }
  bool can_access_peer(int, int) override { fail_unexpected_call(); }
  int owner_of(const void*) override { fail_unexpected_call(); }
  void* allocate(int, std::uint64_t) override { fail_unexpected_call(); }
  void free(int, void*) override { fail_unexpected_call(); }
  std::uint64_t granularity(int) override { fail_unexpected_call(); }
  isthmus::sharing_method preferred_sharing(int) override { fail_unexpected_call(); }
  void* allocate_shared(int, std::uint64_t, isthmus::sharing_method) override { fail_unexpected_call(); }
  void free_shared(int, void*) override { fail_unexpected_call(); }
  void enable_peer(int, int) override { fail_unexpected_call(); }
  void allow_access(void*, int) override { fail_unexpected_call(); }
  isthmus::shared_handle export_shared(void*) override { fail_unexpected_call(); }
  void end_export(void*) override { fail_unexpected_call(); }
  void* import_shared(int, const isthmus::shared_handle&) override { fail_unexpected_call(); }
  void release_import(int, void*) override { fail_unexpected_call(); }
  void fill(int, void*, std::uint8_t, std::uint64_t, isthmus::native_stream) override {
    fail_unexpected_call();
  }
  void write_word(int, std::uint32_t*, std::uint32_t, isthmus::native_stream) override {
    fail_unexpected_call();
  }
  void wait_word(int, const std::uint32_t*, std::uint32_t, isthmus::native_stream) override {
    fail_unexpected_call();
  }

 private:
  [[noreturn]] static void fail_unexpected_call();

  class queue {
   public:
    explicit queue(const driver_behavior& behavior, std::uint64_t seed);
    ~queue();
    void push(command work);
    void drain();

   private:
    void run();
    std::mutex m_mutex;
    std::condition_variable m_changed;
    std::deque<command> m_commands;
    bool m_busy = false;
    std::atomic<bool> m_stop{false};
    int m_delay_us;
    std::mt19937_64 m_random;
    std::thread m_thread;
  };
  struct stream {
    std::shared_ptr<queue> work;
  };
  struct event {
    std::shared_ptr<std::atomic<bool>> is_reached = std::make_shared<std::atomic<bool>>(true);
    bool captured = false;
  };
  void push(int device, isthmus::native_stream stream, command work);
  stream& stream_of(int device, isthmus::native_stream handle);
  void count_call();

  int m_devices;
  driver_behavior m_behavior;
  std::recursive_mutex m_mutex;  // guards the members below, except the atomics
  std::vector<std::shared_ptr<queue>> m_device_queues;
  std::vector<std::unique_ptr<stream>> m_null_streams;
  std::map<isthmus::native_stream, std::unique_ptr<stream>> m_streams;
  std::map<isthmus::native_event, std::unique_ptr<event>> m_events;
  std::uint64_t m_next = 16;
  std::set<isthmus::native_stream> m_captured;
  graph m_graph;
  std::deque<std::string> m_kernels;
  std::atomic<int> m_calls_left{-1}, m_copies{0}, m_commands{0};
};

}  // namespace copy_engine_test
