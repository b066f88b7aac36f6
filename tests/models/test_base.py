import jax.numpy as jnp
import numpy as np

from mlt_jax.models.base import CAFFE, IMAGENET


def test_preprocessing_by_hand():
    image = jnp.full((1, 1, 1, 3), 100, jnp.uint8).at[0, 0, 0, 0].set(200)
    np.testing.assert_allclose(CAFFE(image)[0, 0, 0], [100 - 103.939, 100 - 116.779, 200 - 123.68], rtol=1e-5)
    expected = [(200 / 255 - 0.485) / 0.229, (100 / 255 - 0.456) / 0.224, (100 / 255 - 0.406) / 0.225]
    np.testing.assert_allclose(IMAGENET(image)[0, 0, 0], expected, rtol=1e-5)
