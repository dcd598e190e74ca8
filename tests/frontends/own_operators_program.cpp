// A program that is linked with libisthmus.so and has its own global operators: two ranks, messages of errors, and paths.
#include <isthmus/isthmus.h>
#include <isthmus/tools.h>

#include <array>

#include "own_operators.hpp"

int main() {
  std::array<isthmus_device, 2> devices{};
  std::array<isthmus_communicator, 2> ranks{};
  if (isthmus_communicator_create_all(2, devices.data(), nullptr, ranks.data()) != ISTHMUS_SUCCESS) return 1;
  std::array<float, 2> a = {1, 2}, b = {10, 20};
  isthmus_group_start();
  isthmus_allreduce(a.data(), a.data(), 2, ISTHMUS_FLOAT32, ISTHMUS_SUM, ranks[0], nullptr);
  isthmus_allreduce(b.data(), b.data(), 2, ISTHMUS_FLOAT32, ISTHMUS_SUM, ranks[1], nullptr);
  if (isthmus_group_end() != ISTHMUS_SUCCESS || a[1] != 22 || b[0] != 11) return 2;
  isthmus_error_info failure{};
  if (isthmus_allreduce(nullptr, a.data(), 2, ISTHMUS_FLOAT32, ISTHMUS_SUM, ranks[0], nullptr) ==
      ISTHMUS_SUCCESS)
    return 3;
  isthmus_last_error(&failure);
  if (failure.message[0] == '\0') return 4;
  for (const isthmus_communicator each : ranks)
    if (isthmus_communicator_destroy(each) != ISTHMUS_SUCCESS) return 5;
  return 0;
}
