// What the plans of devices share: streams and events, the words that order ranks, products and what they cost,
// and who looks after a run. Copy engines move chunks on a stream of their own; the host never waits.
#pragma once

#include <optional>

#include "fused/device_board.hpp"
#include "fused/device_product.hpp"
#include "fused/plan.hpp"
#include "fused/sentinel.hpp"

namespace isthmus::fused {

class device_plan : public plan {
 public:
  ~device_plan() override;

  void run(const isthmus_fused_arguments& with) override;
  void describe(nlohmann::json& info) const override;
  void synchronize() override;
  void close() override;

 protected:
  struct lane {  // a stream, and an event that marks how far it has come
    native_stream stream = nullptr;
    native_event event = nullptr;
  };
  struct marks {  // of one group, in traced plans
    native_event copy_begin, copy_end, product_begin, product_end;
  };

  device_plan(std::shared_ptr<communicator> owner, const problem& what, device_driver& driver,
              const blaslt& library);
  // The rest of a derived class's construction. Collective: the board, with a stage of so many bytes on every
  // rank, costs, the order, and what pipelined runs need.
  void settle(std::uint64_t stage_bytes);

  // The communicator's own collective, between buffers of the problem's sizes.
  virtual void enqueue_collective(const void* send, void* recv, native_stream stream) = 0;
  virtual void enqueue_sequential(const isthmus_fused_arguments& with) = 0;
  // Everything between the start of a run, which m_start marks, and its end on with.stream. m_run counts the
  // runs that communicate, this one included.
  virtual void enqueue_pipelined(const isthmus_fused_arguments& with) = 0;

  // Device memory for a whole gathered A, or a whole C before its rows are summed; made at the first call.
  std::byte* workspace();
  void copy(void* to, const void* from, std::uint64_t bytes, native_stream stream);
  // `stream` waits until everything that the two lanes have been given so far is done.
  void join_lanes(native_stream stream);
  void mark(native_event marks::* which, std::size_t group, native_stream stream);

  device_driver& m_driver;
  int m_device;
  device_product m_product;
  std::optional<device_board> m_board;  // where pipelined runs are possible
  lane m_copy, m_signal;
  native_event m_start = nullptr;
  std::uint32_t m_run = 0;                   // wraps
  std::vector<native_event> m_group_events;  // by group
  bool m_staged = false;

 private:
  void allocate();
  void begin_run(const isthmus_fused_arguments& with);
  void end_run(native_stream stream);
  void collect_marks();
  void watch();
  costs measure();
  double measure_product_us(std::uint64_t rows, std::byte* a, std::byte* b, std::byte* c);
  double measure_link(std::byte* to);
  double measure_collective_us(std::byte* whole);
  template <typename Work>
  double time_us(int repetitions, native_stream stream, Work&& work);
  template <typename Work>
  double least_time_us(int repetitions, native_stream stream, Work&& work);
  std::int64_t zero_ns();

  native_event m_finished = nullptr;
  native_event m_zero = nullptr, m_now = nullptr;  // of traced plans: the start of a run, and a moment after it
  std::vector<marks> m_marks;
  isthmus_fused_view m_view = ISTHMUS_FUSED_WHOLE;  // of the latest pipelined run
  void* m_workspace = nullptr;
  std::uint64_t m_workspace_bytes = 0;
  bool m_has_run = false;
  bool m_collected = false;            // the latest run's marks are in the timeline
  std::optional<sentinel> m_sentinel;  // last: it looks at the others
};

}  // namespace isthmus::fused
