// Headers that most files of the core include (CMakeLists.txt).
#pragma once
#include <fmt/format.h>
#include <isthmus/backend.h>
#include <isthmus/isthmus.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
