// SPDX-License-Identifier: BSD-3-Clause
// Bugs on purpose in the code that carries calls out once, to prove that its test finds them.
// Without RTRS_PLANT_CALLS every one of them is a constant false. Only for .cpp files.
#pragma once

namespace rtrs::library {

#define RTRS_CALL_PLANTS(X)                                                           \
  X(executed_again, "a call that has ended is carried out again when it comes again") \
  X(answered_early, "a copy that comes while its call executes is answered at once")  \
  X(late_copy_executed, "a late copy of an older call of the slot is carried out")    \
  X(error_forgotten, "a call that ended with an error is carried out again")          \
  X(void_executed, "a call of a session that is forgotten is carried out")            \
  X(data_not_awaited, "a call that overtakes its data is carried out without them")   \
  X(piece_counted_twice, "a piece of data that comes again counts again")             \
  X(long_answer_dropped, "an answer is not kept although parts of it are fetched")    \
  X(never_given_back, "memory of the handler is not given back")                      \
  X(generation_repeated, "two calls of a slot have the same generation")              \
  X(slot_given_twice, "a slot that comes back is given to two calls")

#ifdef RTRS_PLANT_CALLS

enum class CallPlant {
  none,
#define RTRS_PLANT_NAME(name, text) name,
  RTRS_CALL_PLANTS(RTRS_PLANT_NAME)
#undef RTRS_PLANT_NAME
};
inline CallPlant selected_plant = CallPlant::none;
#define RTRS_CALL_PLANTED(name) \
  (::rtrs::library::selected_plant == ::rtrs::library::CallPlant::name)

#else

#define RTRS_CALL_PLANTED(name) false

#endif

}  // namespace rtrs::library
