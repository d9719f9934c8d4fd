// SPDX-License-Identifier: BSD-3-Clause
// The commands that may still use the memory of a mirror's request.
#pragma once

namespace rnbd::mirror {

/// Counts the commands of a request that are out. A command is out from the moment when the group
/// gives it until the thread that carries it has collected or cancelled it. The group ends a
/// request without the answer of a lost member, and the thread may not know yet that this one's
/// session is over.
///
/// Threads: one; pure.
class MemoryUse {
 public:
  void began() { ++out_; }
  void ended() { --out_; }
  /// The user may have its memory back, once the group has ended the request.
  bool may_return() const;

 private:
  unsigned out_ = 0;
};

}  // namespace rnbd::mirror
