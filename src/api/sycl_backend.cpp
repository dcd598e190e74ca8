// The [sycl_backends] map for front ends that have to know a device's platform before there is a communicator.
#include <isthmus/isthmus.h>

#include <string>

#include "base/error.hpp"
#include "selection/selection.hpp"

isthmus_status isthmus_sycl_backend_platform(const char* config_path, const char* name, int number,
                                             isthmus_platform* platform, int* found) {
  return isthmus::guard([&] {
    if (platform == nullptr || found == nullptr) {
      throw isthmus::make_error(ISTHMUS_ERROR_INVALID_ARGUMENT, ISTHMUS_HERE,
                                "platform or found is NULL; the rule is a place for each result");
    }
    *found = 0;
    const std::string number_text = std::to_string(number);
    for (const auto& [key, value] : isthmus::selection::load_configuration(config_path).sycl_backends) {
      if (key != number_text && (name == nullptr || key != name)) continue;
      *platform = value;
      *found = 1;
    }
  });
}
