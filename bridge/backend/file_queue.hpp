// A reactor's own access to a file or block device.
#pragma once

#include <memory>

#include "bridge/backend/file.hpp"

namespace rnbd {

std::unique_ptr<BackendQueue> open_file_queue(FileState& state, rtrs::Reactor& reactor);

}  // namespace rnbd
