// ALLGATHER_GEMM on devices: copy engines pull the peers' rows chunk by chunk on a stream of their own, words
// in memory order the ranks' streams, events order copies and products. The host never waits.
#pragma once

#include <atomic>
#include <optional>

#include "fused/device_board.hpp"
#include "fused/device_product.hpp"
#include "fused/plan.hpp"
#include "fused/sentinel.hpp"

namespace isthmus::fused {

class device_gather_plan : public plan {
 public:
  device_gather_plan(std::shared_ptr<communicator> owner, const problem& what, device_driver& driver,
                     const cublaslt& library);
  ~device_gather_plan() override;

  void run(const isthmus_fused_arguments& with) override;
  void describe(nlohmann::json& info) const override;
  void synchronize() override;
  void close() override;

 private:
  struct lane {  // a stream, and an event that marks how far it has come
    native_stream stream = nullptr;
    native_event event = nullptr;
  };
  struct marks {  // of one group, in traced plans
    native_event copy_begin, copy_end, product_begin, product_end;
  };

  void allocate();
  void enqueue_run(const isthmus_fused_arguments& with);
  void run_sequential(const isthmus_fused_arguments& with);
  void publish(const isthmus_fused_arguments& with);
  void pull(const isthmus_fused_arguments& with);
  void pull_group(std::size_t index, const std::byte* base);
  void compute(const isthmus_fused_arguments& with);
  void finish(const isthmus_fused_arguments& with);
  void multiply(const void* a, std::uint64_t first_row, std::uint64_t rows,
                const isthmus_fused_arguments& with);
  std::byte* gathered(const isthmus_fused_arguments& with);
  void copy(void* to, const void* from, std::uint64_t bytes, native_stream stream);
  void mark(native_event event, native_stream stream);
  void collect_marks();
  costs measure();
  double measure_product_us(std::uint64_t rows, native_stream stream);
  double measure_link(native_stream stream);
  template <typename Work>
  double time_us(int repetitions, native_stream stream, Work&& work);
  std::uint64_t row_bytes() const { return m_what.asked.k * m_what.input_bytes(); }
  std::uint64_t stage_step_end(std::uint32_t step) const;

  device_driver& m_driver;
  const cublaslt& m_library;
  int m_device;
  device_product m_product;
  std::optional<device_board> m_board;  // where pipelined runs are possible
  lane m_copy, m_signal;
  native_event m_start = nullptr, m_finished = nullptr;
  std::vector<native_event> m_arrived;  // by group
  native_event m_zero = nullptr;
  std::vector<marks> m_marks;
  void* m_workspace = nullptr;
  void* m_scratch = nullptr;  // B and C, while costs are measured
  std::uint64_t m_workspace_bytes = 0;
  std::byte* m_gathered = nullptr;
  bool m_staged = false;
  std::uint32_t m_run = 0;  // runs that communicated; wraps
  bool m_has_run = false;
  std::optional<sentinel> m_sentinel;
};

}  // namespace isthmus::fused
