//! The timer that limits how long a request's head may take.
//!
//! hyper makes a new sleep for each head and drops it when the head is there.
//! All of a connection share one alarm here, which stays as it is set until it
//! rings: for most requests nothing happens but that a deadline is compared.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};
use tokio::task::coop::unconstrained;

/// The timer of one connection.
#[derive(Clone, Default)]
pub(crate) struct Alarm(Arc<Mutex<Option<Set>>>);

struct Set {
    sleep: Pin<Box<tokio::time::Sleep>>,
    /// Whom it wakes.
    waker: Waker,
}

/// A sleep that ends with its own deadline, whenever the alarm rings.
struct Until {
    alarm: Alarm,
    deadline: Instant,
}

impl Timer for Alarm {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(Until { alarm: self.clone(), deadline })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

impl Sleep for Until {}

impl Future for Until {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut alarm = self.alarm.0.lock().unwrap_or_else(PoisonError::into_inner);
        let set = alarm.get_or_insert_with(|| Set::at(self.deadline));
        set.poll_until(self.deadline, cx)
    }
}

impl Set {
    fn at(deadline: Instant) -> Self {
        let sleep = Box::pin(tokio::time::sleep_until(deadline.into()));
        Self { sleep, waker: Waker::noop().clone() }
    }

    fn poll_until(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if self.sleep.deadline().into_std() > deadline {
            *self = Self::at(deadline);
        }
        loop {
            if self.waker.will_wake(cx.waker()) && !self.sleep.is_elapsed() {
                return Poll::Pending;
            }
            self.waker.clone_from(cx.waker());
            // Out of the task's budget it would not be set at all, and never ring.
            ready!(pin!(unconstrained(self.sleep.as_mut())).poll(cx));
            if self.sleep.deadline().into_std() >= deadline {
                return Poll::Ready(());
            }
            // Rung for one who is gone.
            *self = Self::at(deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use tokio::task::coop::{consume_budget, has_budget_remaining};
    use tokio::time::{advance, timeout};

    const SECOND: Duration = Duration::from_secs(1);

    async fn ends_after(sleep: Pin<Box<dyn Sleep>>, time: Duration) {
        let from = tokio::time::Instant::now();
        timeout(time * 2, sleep).await.expect("it ends");
        let took = from.elapsed();
        assert!(took >= time && took < time + Duration::from_millis(5), "{took:?}, not {time:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn each_sleep_ends_with_its_own_deadline() {
        let alarm = Alarm::default();
        ends_after(alarm.sleep(SECOND), SECOND).await;
        ends_after(alarm.sleep(SECOND), SECOND).await;
        ends_after(alarm.sleep(SECOND / 10), SECOND / 10).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_was_set_for_another_does_not_end_a_sleep() {
        let alarm = Alarm::default();
        for _ in 0..5 {
            let mut given_up = alarm.sleep(SECOND);
            let polled = std::future::poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx))).await;
            assert!(polled.is_pending());
            advance(SECOND / 2).await;
        }
        ends_after(alarm.sleep(SECOND), SECOND).await;
    }

    #[tokio::test(start_paused = true)]
    async fn an_alarm_that_is_set_too_late_is_set_anew() {
        let alarm = Alarm::default();
        assert!(timeout(SECOND / 2, alarm.sleep(SECOND * 9)).await.is_err());
        ends_after(alarm.sleep(SECOND), SECOND).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_that_began_in_a_task_without_budget_ends_too() {
        let alarm = Alarm::default();
        let mut sleep = alarm.sleep(SECOND);
        poll_fn(|cx| {
            while has_budget_remaining() {
                let _ = pin!(consume_budget()).poll(cx);
            }
            assert!(sleep.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        ends_after(sleep, SECOND).await;
    }
}
