// SPDX-License-Identifier: BSD-3-Clause
// The border between rnbd-server and rnbd-backend-rbd.so, the only part that needs librbd. Plain
// functions and structs: both sides are built from the same sources, and share nothing else.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rnbd {

/// The server refuses a module with a different number.
constexpr std::uint32_t kRbdModuleVersion = 2;
constexpr char kRbdModuleFile[] = "rnbd-backend-rbd.so";
constexpr char kRbdModuleEntry[] = "rnbd_rbd_module";
/// Steps of opening whose failures have causes of their own.
constexpr char kRbdConfigurationStep[] = "reading the cluster's configuration";
constexpr char kRbdConnectStep[] = "connecting to the cluster";
/// This step of opening fails if the image's configuration endangers the fence or durability.
constexpr char kRbdSettingsStep[] = "looking at its configuration";

struct RbdImage;

/// Empty strings: not given.
struct RbdTarget {
  const char* conf;
  const char* id;
  const char* pool;
  const char* space;  ///< the namespace
  const char* image;
  const char* snapshot;
  bool read_only;
};

struct RbdFacts {
  std::uint64_t size = 0;   ///< bytes
  char identity[192] = {};  ///< cluster, pool, image and snapshot
};

struct RbdOperation {
  enum class Kind : std::uint32_t { read, write, flush, discard, write_zeroes, write_thick_zeroes };
  Kind kind = Kind::read;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  ///< bytes
  std::byte* data = nullptr;
  /// `result`: 0 or more, or a negative errno. On a thread of librbd's, or inside start().
  void (*completed)(RbdOperation& operation, std::int64_t result) = nullptr;
  RbdImage* image = nullptr;  ///< the module's
};

/// A run of allocated (`exists`) or empty objects, in the order of offsets. Not 0: stop.
using RbdExtentSink = int (*)(std::uint64_t offset, std::size_t length, int exists, void* context);

/// Threads: any. All may block, apart from start(), size() and fenced().
struct RbdModule {
  std::uint32_t version;
  /// 0, or a negative errno; then `step` is the step of opening that failed.
  int (*open)(const RbdTarget& target, RbdImage** image, RbdFacts& facts, const char** step);
  void (*close)(RbdImage* image);  ///< when nothing is under way
  void (*start)(RbdImage* image, RbdOperation& operation);
  /// Returns the last known size in bytes. It also makes an idle image check whether it is fenced
  /// off.
  std::uint64_t (*size)(RbdImage* image);
  bool (*fenced)(RbdImage* image);  ///< the cluster refuses all requests of this server
  int (*extents)(RbdImage* image, std::uint64_t offset, std::uint64_t length, RbdExtentSink sink,
                 void* context);
  /// Reads a short text from the image's metadata; `size` is the size of the buffer. 0, or a
  /// negative errno (ENOENT: no such text; ERANGE: the buffer is too small, and `size` is the size
  /// it needs).
  int (*load_note)(RbdImage* image, const char* key, char* value, std::size_t* size);
  /// Durable when it returns. 0, or a negative errno.
  int (*save_note)(RbdImage* image, const char* key, const char* value);
};

}  // namespace rnbd
